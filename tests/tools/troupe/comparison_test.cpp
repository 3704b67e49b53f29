#include <checkpoint/comparison.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace troupe;
using namespace troupe::tool;

namespace {

template <class T>
tensor_difference compared(dtype type, const std::vector<T>& a, const std::vector<T>& b) {
  return compare(type, std::as_bytes(std::span{a}), std::as_bytes(std::span{b}));
}

} // namespace

TEST_CASE("equal tensors do not differ, whatever their content") {
  auto x = std::vector<float>{1, -0.0f, std::nanf(""), INFINITY};
  CHECK(compared(dtype::f32, x, x) == tensor_difference{4, 0, 4, 0, 0, 1, 1});
  CHECK(compared(dtype::f64, std::vector<double>{}, std::vector<double>{}) == tensor_difference{});
}

TEST_CASE("differences are counted by bits and measured by value") {
  auto d = compared(dtype::f32, std::vector<float>{1, 2, -4, 0}, std::vector<float>{1, 3, -3, 0});
  CHECK(d == tensor_difference{4, 2, 1, 1, 1 / 3.0, 0, 0});
  // Zeros of both signs are equal but have different bits.
  CHECK(compared(dtype::f64, std::vector<double>{0.0}, std::vector<double>{-0.0}) ==
        tensor_difference{1, 1, 0, 0, 0, 0, 0});
  // Opposite numbers have the largest relative difference.
  CHECK(compared(dtype::f64, std::vector<double>{-5}, std::vector<double>{5}).max_relative == 2);
}

TEST_CASE("NaNs are counted on each side and do not affect the measures") {
  auto nan = std::nan("");
  auto d = compared(dtype::f64, std::vector<double>{nan, 1, nan, 2}, std::vector<double>{1, nan, nan, 4});
  CHECK(d == tensor_difference{4, 3, 0, 2, 0.5, 2, 2});
}

TEST_CASE("an infinity differs infinitely from a number") {
  auto d = compared(dtype::f32, std::vector<float>{INFINITY, 1}, std::vector<float>{1, 1});
  CHECK(d.differing == 1);
  CHECK(std::isinf(d.max_absolute));
  CHECK(d.max_relative == 1);
}

TEST_CASE("half precision is converted correctly") {
  // 1, -2, the smallest, the largest, infinity, NaN; and 1.5, -2, 0, the largest, the largest, NaN.
  auto a = std::vector<std::uint16_t>{0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x7e00};
  auto b = std::vector<std::uint16_t>{0x3e00, 0xc000, 0x0000, 0x7bff, 0x7bff, 0x7e00};
  auto d = compared(dtype::f16, a, b);
  CHECK(d.differing == 3);
  CHECK(d.left_nans == 1);
  CHECK(d.right_nans == 1);
  CHECK(std::isinf(d.max_absolute));
  CHECK(compared(dtype::f16, std::vector<std::uint16_t>{0x0001}, std::vector<std::uint16_t>{0}).max_absolute ==
        std::ldexp(1.0, -24));
  CHECK(compared(dtype::f16, std::vector<std::uint16_t>{0x7bff}, std::vector<std::uint16_t>{0}).max_absolute == 65504);
  CHECK(compared(dtype::f16, std::vector<std::uint16_t>{0x3c00}, std::vector<std::uint16_t>{0x3e00}).max_absolute ==
        0.5);
  // 1 and 3 in bf16.
  CHECK(compared(dtype::bf16, std::vector<std::uint16_t>{0x3f80}, std::vector<std::uint16_t>{0x4040}).max_absolute ==
        2);
}

TEST_CASE("integers are subtracted without overflow") {
  using limits = std::numeric_limits<std::int64_t>;
  auto d = compared(dtype::i64, std::vector<std::int64_t>{limits::min(), limits::max()},
                    std::vector<std::int64_t>{limits::max(), limits::max() - 1});
  CHECK(d.max_absolute == std::ldexp(1.0, 64));
  CHECK(d.differing == 2);
  CHECK(compared(dtype::i64, std::vector<std::int64_t>{limits::max()}, std::vector<std::int64_t>{limits::max() - 1})
            .max_absolute == 1);
  CHECK(compared(dtype::i32, std::vector<std::int32_t>{-7}, std::vector<std::int32_t>{3}).max_absolute == 10);
  CHECK(compared(dtype::i16, std::vector<std::int16_t>{-7}, std::vector<std::int16_t>{3}).max_absolute == 10);
  CHECK(compared(dtype::i8, std::vector<std::int8_t>{-128}, std::vector<std::int8_t>{127}).max_absolute == 255);
  CHECK(compared(dtype::u8, std::vector<std::uint8_t>{255}, std::vector<std::uint8_t>{0}).max_absolute == 255);
  CHECK(compared(dtype::u16, std::vector<std::uint16_t>{65535}, std::vector<std::uint16_t>{0}).max_absolute == 65535);
  CHECK(compared(dtype::u32, std::vector<std::uint32_t>{0}, std::vector<std::uint32_t>{4294967295}).max_absolute ==
        4294967295.0);
  CHECK(compared(dtype::u64, std::vector<std::uint64_t>{std::numeric_limits<std::uint64_t>::max()},
                 std::vector<std::uint64_t>{0})
            .max_absolute == std::ldexp(1.0, 64));
  CHECK(compared(dtype::boolean, std::vector<std::uint8_t>{1}, std::vector<std::uint8_t>{0}).differing == 1);
}
