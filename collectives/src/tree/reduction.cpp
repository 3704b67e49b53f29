#include "tree/half.hpp"

#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <type_traits>

// The compiler cannot see that iterations are independent when the result may be an operand.
#if defined(__clang__)
#define TROUPE_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define TROUPE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define TROUPE_INDEPENDENT_ITERATIONS
#endif

#if defined(__GNUC__)
#define TROUPE_ALWAYS_INLINE __attribute__((always_inline))
#else
#define TROUPE_ALWAYS_INLINE
#endif

namespace troupe::collectives {

namespace {

template <class T>
T canonical(T x) noexcept {
  if constexpr (std::is_floating_point_v<T>)
    return x == x ? x : std::numeric_limits<T>::quiet_NaN();
  else
    return x;
}

/// Signed overflow is undefined, so integers are added and multiplied as unsigned ones, which wrap.
template <class T>
using arithmetic = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;

/// The operations, except for the bits of a NaN: any operation on a NaN gives a NaN, so it is enough to make the last
/// one canonical.
struct add {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return static_cast<T>(static_cast<arithmetic<T>>(x) + static_cast<arithmetic<T>>(y));
  }
};

struct multiply {
  template <class T>
  T operator()(T x, T y) const noexcept {
    return static_cast<T>(static_cast<arithmetic<T>>(x) * static_cast<arithmetic<T>>(y));
  }
};

/// A number with the order of `x`, where -0 is below +0 and NaN is outside the infinities. Comparing it instead of `x`
/// makes min and max independent of the order of operands and of flush-to-zero settings.
template <class T>
auto order_of(T x) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    using number = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    const auto bits = std::bit_cast<number>(x);
    return static_cast<number>(bits ^ ((bits >> (8 * sizeof(T) - 1)) & std::numeric_limits<number>::max()));
  } else {
    return x;
  }
}

/// x != x detects NaN; for integers it is a constant.
struct lesser {
  template <class T>
  T operator()(T x, T y) const noexcept {
    const auto least = order_of(x) < order_of(y) ? x : y;
    return x != x ? x : y != y ? y : least;
  }
};

struct greater {
  template <class T>
  T operator()(T x, T y) const noexcept {
    const auto greatest = order_of(x) > order_of(y) ? x : y;
    return x != x ? x : y != y ? y : greatest;
  }
};

#if defined(__x86_64__) && defined(__GNUC__)
template <class F>
__attribute__((target("avx2"))) void run_with_avx2(F loop) noexcept {
  loop();
}
#endif

/// Runs a loop over elements, which is always inlined. On x86-64, where the library is compiled without AVX, it is
/// compiled a second time for processors with AVX2. Nothing is fused or reordered, so the bits are equal.
template <class F>
void run_loop(F loop) noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx2"))
    return run_with_avx2(loop);
#endif
  loop();
}

/// Three loops, so that each tells the compiler that nothing else overlaps, and vectorises without a check.
template <class T, class F>
TROUPE_ALWAYS_INLINE inline void combine_typed(T* out, const T* left, const T* right, std::uint64_t n, F f) noexcept {
  if (out == left) {
    T* __restrict x = out;
    const T* __restrict y = right;
    for (std::uint64_t i = 0; i < n; ++i)
      x[i] = canonical(f(x[i], y[i]));
  } else if (out == right) {
    const T* __restrict x = left;
    T* __restrict y = out;
    for (std::uint64_t i = 0; i < n; ++i)
      y[i] = canonical(f(x[i], y[i]));
  } else {
    T* __restrict z = out;
    const T* __restrict x = left;
    const T* __restrict y = right;
    for (std::uint64_t i = 0; i < n; ++i)
      z[i] = canonical(f(x[i], y[i]));
  }
}

/// The balanced tree over `N` operands starting at `first`.
template <std::size_t N, class T, class F>
TROUPE_ALWAYS_INLINE inline T tree_at(const T* const* first, std::uint64_t i, F f) noexcept {
  if constexpr (N == 1)
    return first[0][i];
  else
    return f(tree_at<N / 2>(first, i, f), tree_at<N / 2>(first + N / 2, i, f));
}

template <std::size_t N, class T, class F>
TROUPE_ALWAYS_INLINE inline void combine_tree(T* out, const std::byte* const* operands, std::uint64_t n, F f) noexcept {
  const T* x[N];
  for (std::size_t k = 0; k < N; ++k)
    x[k] = reinterpret_cast<const T*>(operands[k]);
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::uint64_t i = 0; i < n; ++i)
    out[i] = canonical(tree_at<N>(x, i, f));
}

/// Calls `f` with the operation's function.
template <class F>
void with_function(reduce_op op, F f) noexcept {
  switch (op) {
  case reduce_op::sum:
  case reduce_op::mean:
    return f(add{});
  case reduce_op::min:
    return f(lesser{});
  case reduce_op::max:
    return f(greater{});
  case reduce_op::product:
    return f(multiply{});
  }
}

/// Calls `f` with a null pointer to the element type; does nothing for a type that is not its own `sum_type`.
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
  case dtype::u16:
  case dtype::u32:
  case dtype::u64:
  case dtype::boolean:
    return false;
  }
  return false;
}

/// Integers are divided by magnitude: the divisor may exceed the type.
template <class T>
T quotient(T x, arithmetic<T> divisor) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return canonical(x / divisor);
  } else {
    const auto bits = static_cast<std::uint64_t>(x);
    return static_cast<T>(x < 0 ? 0 - (0 - bits) / divisor : bits / divisor);
  }
}

template <class To, class From, class F>
TROUPE_ALWAYS_INLINE inline void convert(std::byte* out, const std::byte* in, std::uint64_t n, F f) noexcept {
  auto* __restrict y = reinterpret_cast<To*>(out);
  const auto* __restrict x = reinterpret_cast<const From*>(in);
  for (std::uint64_t i = 0; i < n; ++i)
    y[i] = f(x[i]);
}

/// Called for each segment's piece of `range` with its type, its offsets in a bucket of `layout` and of `layout.sums()`
/// (relative to the range's first byte), and its number of elements.
template <class F>
void for_each_piece(const bucket_layout& layout, byte_range range, F f) noexcept {
  const auto start_in_sums = layout.offset_in_sums(range.first);
  const auto segments = layout.segments().size();
  for (auto i = layout.segment_at(range.first); i < segments && layout.offset_bytes(i) < range.last; ++i) {
    const auto first = std::max(range.first, layout.offset_bytes(i));
    const auto last = std::min(range.last, layout.offset_bytes(i + 1));
    const auto type = layout.segments()[i].type;
    if (first < last)
      f(type, first - range.first, layout.offset_in_sums(first) - start_in_sums, (last - first) / size_of(type));
  }
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
  if (with_element(sum_type(type), [](auto*) {}))
    return {};
  return fail(
      errc::invalid_argument,
      fmt::format("elements of type {} cannot be reduced; use f32, f64, f16, bf16, i32, i64 or u8", to_string(type)));
}

expected<void> check_reducible(const bucket_layout& layout) {
  for (const auto& segment : layout.segments())
    TROUPE_TRY(check_reducible(segment.type));
  return {};
}

dtype sum_type(dtype type) noexcept {
  return type == dtype::f16 || type == dtype::bf16 ? dtype::f32 : type;
}

void combine(dtype type, reduce_op op, std::byte* out, const std::byte* left, const std::byte* right,
             std::uint64_t elements) noexcept {
  with_element(type, [&]<class T>(T*) {
    with_function(op, [&](auto f) {
      run_loop([=]() TROUPE_ALWAYS_INLINE {
        combine_typed(reinterpret_cast<T*>(out), reinterpret_cast<const T*>(left), reinterpret_cast<const T*>(right),
                      elements, f);
      });
    });
  });
}

void combine(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out, const std::byte* left,
             const std::byte* right) noexcept {
  for_each_piece(layout, range, [&](dtype type, std::uint64_t at, std::uint64_t, std::uint64_t elements) {
    combine(type, op, out + at, left + at, right + at, elements);
  });
}

void combine_balanced(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out,
                      std::span<const std::byte* const> operands) noexcept {
  if (operands.size() == 2)
    return combine(layout, range, op, out, operands[0], operands[1]);
  for_each_piece(layout, range, [&](dtype type, std::uint64_t at, std::uint64_t, std::uint64_t elements) {
    const std::byte* x[8];
    std::ranges::transform(operands, x, [at](const std::byte* operand) { return operand + at; });
    with_element(type, [&]<class T>(T*) {
      with_function(op, [&](auto f) {
        auto* sum = reinterpret_cast<T*>(out + at);
        if (operands.size() == 4)
          run_loop([&]() TROUPE_ALWAYS_INLINE { combine_tree<4>(sum, x, elements, f); });
        else
          run_loop([&]() TROUPE_ALWAYS_INLINE { combine_tree<8>(sum, x, elements, f); });
      });
    });
  });
}

void divide(dtype type, std::byte* data, std::uint64_t elements, std::uint64_t divisor) noexcept {
  if (divisor == 1)
    return;
  with_element(type, [&]<class T>(T*) {
    auto* x = reinterpret_cast<T*>(data);
    const auto by = static_cast<arithmetic<T>>(divisor);
    run_loop([=]() TROUPE_ALWAYS_INLINE {
      for (std::uint64_t i = 0; i < elements; ++i)
        x[i] = quotient(x[i], by);
    });
  });
}

void widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements) noexcept {
  if (type == dtype::f16)
    run_loop([=]() TROUPE_ALWAYS_INLINE { convert<float, std::uint16_t>(out, in, elements, f32_from_f16); });
  else if (type == dtype::bf16)
    run_loop([=]() TROUPE_ALWAYS_INLINE { convert<float, std::uint16_t>(out, in, elements, f32_from_bf16); });
  else if (elements != 0)
    std::memcpy(out, in, elements * size_of(type));
}

void narrow(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements) noexcept {
  if (type == dtype::f16)
    run_loop([=]() TROUPE_ALWAYS_INLINE { convert<std::uint16_t, float>(out, in, elements, f16_from_f32); });
  else if (type == dtype::bf16)
    run_loop([=]() TROUPE_ALWAYS_INLINE { convert<std::uint16_t, float>(out, in, elements, bf16_from_f32); });
  else if (elements != 0)
    std::memcpy(out, in, elements * size_of(type));
}

void divide(const bucket_layout& layout, byte_range range, std::byte* data, std::uint64_t divisor) noexcept {
  for_each_piece(layout, range, [&](dtype type, std::uint64_t, std::uint64_t in_sums, std::uint64_t elements) {
    divide(sum_type(type), data + in_sums, elements, divisor);
  });
}

void widen(const bucket_layout& layout, byte_range range, std::byte* out, const std::byte* in) noexcept {
  for_each_piece(layout, range, [&](dtype type, std::uint64_t at, std::uint64_t in_sums, std::uint64_t elements) {
    widen(type, out + in_sums, in + at, elements);
  });
}

void narrow(const bucket_layout& layout, byte_range range, std::byte* out, const std::byte* in) noexcept {
  for_each_piece(layout, range, [&](dtype type, std::uint64_t at, std::uint64_t in_sums, std::uint64_t elements) {
    narrow(type, out + at, in + in_sums, elements);
  });
}

} // namespace troupe::collectives
