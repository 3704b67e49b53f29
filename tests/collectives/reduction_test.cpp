#include <troupe/collectives/reduction.hpp>

#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;

namespace {

template <class T>
T one(reduce_op op, T left, T right) {
  T out{};
  combine(dtype_of<T>, op, reinterpret_cast<std::byte*>(&out), reinterpret_cast<const std::byte*>(&left),
          reinterpret_cast<const std::byte*>(&right), 1);
  return out;
}

constexpr auto nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr auto infinity = std::numeric_limits<float>::infinity();

} // namespace

TEST_CASE("the operations are what their names say") {
  CHECK(one(reduce_op::sum, 1.5, 2.0) == 3.5);
  CHECK(one(reduce_op::product, 1.5f, 2.0f) == 3.0f);
  CHECK(one(reduce_op::min, -1, 2) == -1);
  CHECK(one(reduce_op::max, std::int64_t{-1}, std::int64_t{2}) == 2);
  CHECK(one(reduce_op::sum, std::uint8_t{200}, std::uint8_t{100}) == 44);
}

TEST_CASE("integers wrap around") {
  CHECK(one(reduce_op::sum, std::numeric_limits<std::int32_t>::max(), 1) == std::numeric_limits<std::int32_t>::min());
  CHECK(one(reduce_op::product, std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}) ==
        std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("NaN wins from either side, and has one bit pattern") {
  const auto other_nan = std::bit_cast<float>(0xffc12345u);
  for (auto op : {reduce_op::sum, reduce_op::min, reduce_op::max, reduce_op::product})
    for (auto nan : {nan_value, other_nan}) {
      INFO(to_string(op));
      CHECK(std::bit_cast<std::uint32_t>(one(op, nan, 1.0f)) == 0x7fc00000u);
      CHECK(std::bit_cast<std::uint32_t>(one(op, 1.0f, nan)) == 0x7fc00000u);
      CHECK(std::bit_cast<std::uint32_t>(one(op, nan, other_nan)) == 0x7fc00000u);
    }
  CHECK(std::bit_cast<std::uint32_t>(one(reduce_op::sum, infinity, -infinity)) == 0x7fc00000u);
}

TEST_CASE("signed zeros and subnormals are kept") {
  CHECK(std::signbit(one(reduce_op::sum, -0.0f, -0.0f)));
  CHECK(!std::signbit(one(reduce_op::sum, -0.0f, 0.0f)));
  const auto tiny = std::numeric_limits<float>::denorm_min();
  CHECK(one(reduce_op::sum, tiny, tiny) == 2 * tiny);
}

TEST_CASE("the result may lie over either operand") {
  for (std::size_t n : {0, 1, 7, 1001}) {
    std::vector<float> x(n), y(n), z(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i) * 0.7f;
      y[i] = 1.0f / static_cast<float>(i + 1);
    }
    const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
    combine(dtype::f32, reduce_op::sum, bytes(z), bytes(x), bytes(y), n);
    auto over_left = x;
    combine(dtype::f32, reduce_op::sum, bytes(over_left), bytes(over_left), bytes(y), n);
    auto over_right = y;
    combine(dtype::f32, reduce_op::sum, bytes(over_right), bytes(x), bytes(over_right), n);
    CHECK(z == over_left);
    CHECK(z == over_right);
  }
}

TEST_CASE("a part of a bucket is combined with the type of each segment in it") {
  const bucket_layout layout{{{dtype::f32, 16}, {dtype::i64, 16}, {dtype::f32, 16}}};
  const byte_range part{64, 192};
  std::vector<std::int64_t> left(16, 3), right(16, 4), out(16);
  combine(layout, part, reduce_op::sum, reinterpret_cast<std::byte*>(out.data()),
          reinterpret_cast<const std::byte*>(left.data()), reinterpret_cast<const std::byte*>(right.data()));
  CHECK(out == std::vector<std::int64_t>(16, 7));
}

TEST_CASE("types that cannot be summed exactly are refused by name") {
  for (auto type : {dtype::f16, dtype::bf16, dtype::i8, dtype::i16, dtype::boolean}) {
    const auto result = check_reducible(type);
    REQUIRE(!result);
    CHECK(result.error().code == errc::invalid_argument);
    CHECK(result.error().message.find(to_string(type)) != std::string::npos);
  }
  CHECK(check_reducible(bucket_layout{{{dtype::f32, 1}, {dtype::i64, 1}}}));
  CHECK(!check_reducible(bucket_layout{{{dtype::f32, 1}, {dtype::bf16, 1}}}));
}
