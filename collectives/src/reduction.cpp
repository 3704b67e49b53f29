#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

namespace troupe::collectives {

namespace {

template <class T>
T canonical(T x) noexcept {
  if constexpr (std::is_floating_point_v<T>)
    return x == x ? x : std::numeric_limits<T>::quiet_NaN();
  else
    return x;
}

/// Signed overflow is undefined: integers are added and multiplied as unsigned ones, and wrap.
template <class T>
using arithmetic = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;

struct add {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return canonical(static_cast<T>(static_cast<arithmetic<T>>(x) + static_cast<arithmetic<T>>(y)));
  }
};

struct multiply {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return canonical(static_cast<T>(static_cast<arithmetic<T>>(x) * static_cast<arithmetic<T>>(y)));
  }
};

/// x != x finds NaN; for integers it is constant.
struct lesser {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return canonical(x != x || x < y ? x : y);
  }
};

struct greater {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return canonical(x != x || x > y ? x : y);
  }
};

/// Three loops, so that each tells the compiler that nothing else overlaps and is vectorised without a check.
template <class T, class F>
void combine_typed(T* out, const T* left, const T* right, std::uint64_t n, F f) noexcept {
  if (out == left) {
    T* __restrict x = out;
    const T* __restrict y = right;
    for (std::uint64_t i = 0; i < n; ++i)
      x[i] = f(x[i], y[i]);
  } else if (out == right) {
    const T* __restrict x = left;
    T* __restrict y = out;
    for (std::uint64_t i = 0; i < n; ++i)
      y[i] = f(x[i], y[i]);
  } else {
    T* __restrict z = out;
    const T* __restrict x = left;
    const T* __restrict y = right;
    for (std::uint64_t i = 0; i < n; ++i)
      z[i] = f(x[i], y[i]);
  }
}

template <class T>
void combine_op(reduce_op op, T* out, const T* left, const T* right, std::uint64_t n) noexcept {
  switch (op) {
  case reduce_op::sum:
  case reduce_op::mean:
    return combine_typed(out, left, right, n, add{});
  case reduce_op::min:
    return combine_typed(out, left, right, n, lesser{});
  case reduce_op::max:
    return combine_typed(out, left, right, n, greater{});
  case reduce_op::product:
    return combine_typed(out, left, right, n, multiply{});
  }
}

/// Calls `f` with a null pointer of the element type; not at all for a type that cannot be reduced.
template <class F>
bool with_element(dtype type, F f) {
  switch (type) {
  case dtype::f32:
    f(static_cast<float*>(nullptr));
    return true;
  case dtype::f64:
    f(static_cast<double*>(nullptr));
    return true;
  case dtype::i32:
    f(static_cast<std::int32_t*>(nullptr));
    return true;
  case dtype::i64:
    f(static_cast<std::int64_t*>(nullptr));
    return true;
  case dtype::u8:
    f(static_cast<std::uint8_t*>(nullptr));
    return true;
  case dtype::f16:
  case dtype::bf16:
  case dtype::i8:
  case dtype::i16:
  case dtype::boolean:
    return false;
  }
  return false;
}

} // namespace

std::string_view to_string(reduce_op op) noexcept {
  switch (op) {
  case reduce_op::sum:
    return "sum";
  case reduce_op::mean:
    return "mean";
  case reduce_op::min:
    return "min";
  case reduce_op::max:
    return "max";
  case reduce_op::product:
    return "product";
  }
  return "unknown";
}

expected<void> check_reducible(dtype type) {
  if (with_element(type, [](auto*) {}))
    return {};
  return fail(errc::invalid_argument, "elements of type " + std::string{to_string(type)} +
                                          " cannot be reduced; keep what is summed in f32, f64, i32, i64 or u8");
}

expected<void> check_reducible(const bucket_layout& layout) {
  for (const auto& segment : layout.segments())
    if (auto valid = check_reducible(segment.type); !valid)
      return valid;
  return {};
}

void combine(dtype type, reduce_op op, std::byte* out, const std::byte* left, const std::byte* right,
             std::uint64_t elements) noexcept {
  with_element(type, [&]<class T>(T*) {
    combine_op(op, reinterpret_cast<T*>(out), reinterpret_cast<const T*>(left), reinterpret_cast<const T*>(right),
               elements);
  });
}

void combine(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out, const std::byte* left,
             const std::byte* right) noexcept {
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto first = std::max(range.first, layout.offset_bytes(i));
    const auto last = std::min(range.last, layout.offset_bytes(i + 1));
    if (first >= last)
      continue;
    const auto at = first - range.first;
    const auto type = layout.segments()[i].type;
    combine(type, op, out + at, left + at, right + at, (last - first) / size_of(type));
  }
}

void divide(dtype type, std::byte* data, std::uint64_t elements, std::uint32_t divisor) noexcept {
  with_element(type, [&]<class T>(T*) {
    using wide = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
    auto* x = reinterpret_cast<T*>(data);
    for (std::uint64_t i = 0; i < elements; ++i)
      x[i] = canonical(static_cast<T>(static_cast<wide>(x[i]) / static_cast<wide>(divisor)));
  });
}

} // namespace troupe::collectives
