#include "tree/element_arithmetic.hpp"
#include "tree/half.hpp"

#include <troupe/collectives/reduction.hpp>

#include <bit>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <random>
#include <vector>

// The element arithmetic of kernels, compiled for the host, against the host's loops. device_gpu_test shows that a
// device does the same.

using namespace troupe;
using namespace troupe::collectives;
namespace kernel = troupe::collectives::arithmetic;

namespace {

template <class T>
std::vector<T> interesting_values() {
  using limits = std::numeric_limits<T>;
  std::vector<T> result = {T{0}, T{1}, limits::max(), limits::lowest(), limits::min(), static_cast<T>(T{0} - T{1})};
  if constexpr (std::is_floating_point_v<T>) {
    using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const auto quiet = std::bit_cast<bits>(limits::quiet_NaN());
    for (auto x : {-T{0}, limits::denorm_min(), -limits::denorm_min(), limits::min() / 2, limits::infinity(),
                   -limits::infinity(), limits::quiet_NaN(), -limits::quiet_NaN(), std::bit_cast<T>(quiet | 77),
                   T{1} + limits::epsilon(), limits::epsilon() / 2, T{1e-30}})
      result.push_back(x);
  }
  std::mt19937_64 random{7};
  for (int i = 0; i < 30; ++i) {
    const auto word = random();
    if constexpr (sizeof(T) == 8)
      result.push_back(std::bit_cast<T>(word));
    else if constexpr (sizeof(T) == 4)
      result.push_back(std::bit_cast<T>(static_cast<std::uint32_t>(word)));
    else
      result.push_back(static_cast<T>(word));
  }
  return result;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& x) {
  const auto* first = reinterpret_cast<const std::byte*>(x.data());
  return {first, first + x.size() * sizeof(T)};
}

template <class T>
struct all_pairs {
  std::vector<T> left;
  std::vector<T> right;

  all_pairs() {
    for (auto x : interesting_values<T>())
      for (auto y : interesting_values<T>()) {
        left.push_back(x);
        right.push_back(y);
      }
  }
};

template <class T, class F>
void check_operation(reduce_op op, F f) {
  const all_pairs<T> x;
  std::vector<T> wanted(x.left.size());
  combine(dtype_of<T>, op, reinterpret_cast<std::byte*>(wanted.data()),
          reinterpret_cast<const std::byte*>(x.left.data()), reinterpret_cast<const std::byte*>(x.right.data()),
          x.left.size());
  std::vector<T> found;
  for (std::size_t i = 0; i < x.left.size(); ++i) {
    const T pair[] = {x.left[i], x.right[i]};
    found.push_back(kernel::combined<2>(pair, f));
  }
  CHECK(bytes_of(found) == bytes_of(wanted));
}

/// Balanced trees over 4 and 8 operands, as `combine_balanced` does them.
template <int N, class T, class F>
void check_tree(reduce_op op, F f) {
  const auto values = interesting_values<T>();
  const auto n = values.size();
  std::vector<std::vector<T>> operands(N);
  for (std::size_t k = 0; k < N; ++k)
    for (std::size_t i = 0; i < n; ++i)
      operands[k].push_back(values[(i * (k + 3) + k) % n]);
  // Padding counts as elements.
  const bucket_layout layout{{{dtype_of<T>, n}}};
  std::vector<const std::byte*> pointers;
  for (auto& operand : operands) {
    operand.resize(layout.size_bytes() / sizeof(T));
    pointers.push_back(reinterpret_cast<const std::byte*>(operand.data()));
  }
  std::vector<T> wanted(operands[0].size());
  combine_balanced(layout, {0, layout.size_bytes()}, op, reinterpret_cast<std::byte*>(wanted.data()), pointers);
  std::vector<T> found;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    T x[N];
    for (std::size_t k = 0; k < N; ++k)
      x[k] = operands[k][i];
    found.push_back(kernel::combined<N>(x, f));
  }
  CHECK(bytes_of(found) == bytes_of(wanted));
}

template <class T>
void check_type() {
  INFO(to_string(dtype_of<T>));
  check_operation<T>(reduce_op::sum, kernel::add{});
  check_operation<T>(reduce_op::min, kernel::lesser{});
  check_operation<T>(reduce_op::max, kernel::greater{});
  check_operation<T>(reduce_op::product, kernel::multiply{});
  check_tree<4, T>(reduce_op::sum, kernel::add{});
  check_tree<8, T>(reduce_op::sum, kernel::add{});
  check_tree<8, T>(reduce_op::min, kernel::lesser{});
  for (std::uint64_t divisor :
       {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1000}, (std::uint64_t{1} << 40) + 1}) {
    INFO("divided by ", divisor);
    auto wanted = interesting_values<T>();
    std::vector<T> found;
    for (auto x : wanted)
      found.push_back(kernel::finished<T>(x, divisor != 1, static_cast<kernel::wrapping<T>>(divisor)));
    divide(dtype_of<T>, reinterpret_cast<std::byte*>(wanted.data()), wanted.size(), divisor);
    CHECK(bytes_of(found) == bytes_of(wanted));
  }
}

} // namespace

TEST_CASE("kernels' arithmetic gives the bits of the host's loops, special values included") {
  check_type<float>();
  check_type<double>();
  check_type<std::int32_t>();
  check_type<std::int64_t>();
  check_type<std::uint8_t>();
}

TEST_CASE("every 16-bit float becomes the same f32 as on the host") {
  std::uint32_t differing = 0;
  for (std::uint32_t x = 0; x <= UINT16_MAX; ++x) {
    const auto half = static_cast<std::uint16_t>(x);
    differing += std::bit_cast<std::uint32_t>(kernel::widened(kernel::f16{half})) !=
                 std::bit_cast<std::uint32_t>(f32_from_f16(half));
    differing += std::bit_cast<std::uint32_t>(kernel::widened(kernel::bf16{half})) !=
                 std::bit_cast<std::uint32_t>(f32_from_bf16(half));
  }
  CHECK(differing == 0);
}

TEST_CASE("an f32 is rounded to the same 16-bit float as on the host") {
  std::uint32_t differing = 0;
  const auto compare = [&](std::uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    differing += kernel::narrowed<kernel::f16>(x).bits != f16_from_f32(x);
    differing += kernel::narrowed<kernel::bf16>(x).bits != bf16_from_f32(x);
  };
  // Around every 16-bit float, and the midpoint to the next.
  for (std::uint32_t x = 0; x <= UINT16_MAX; ++x)
    for (std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      compare(x << 16 | low);
  for (std::uint32_t x = 0; x <= UINT16_MAX; ++x) {
    const auto bits = std::bit_cast<std::uint32_t>(f32_from_f16(static_cast<std::uint16_t>(x)));
    for (std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu})
      compare(bits + low);
  }
  std::mt19937 random{11};
  for (int i = 0; i < 300000; ++i)
    compare(random());
  CHECK(differing == 0);
}
