#include "leaf_values.hpp"

#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

constexpr auto nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr auto infinity = std::numeric_limits<float>::infinity();

template <class T>
T one(reduce_op op, T left, T right) {
  T out{};
  combine(dtype_of<T>, op, reinterpret_cast<std::byte*>(&out), reinterpret_cast<const std::byte*>(&left),
          reinterpret_cast<const std::byte*>(&right), 1);
  return out;
}

std::byte* bytes_of(auto& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <class T>
constexpr dtype half_type = std::is_same_v<T, f16> ? dtype::f16 : dtype::bf16;

template <class T>
std::vector<float> widened(std::vector<T> in) {
  std::vector<float> out(in.size());
  widen(half_type<T>, bytes_of(out), bytes_of(in), in.size());
  return out;
}

template <class T>
std::vector<T> narrowed(std::vector<float> in) {
  std::vector<T> out(in.size());
  narrow(half_type<T>, bytes_of(out), bytes_of(in), in.size());
  return out;
}

template <class T>
std::vector<T> all_halves() {
  std::vector<T> result(65536);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i].bits = static_cast<std::uint16_t>(i);
  return result;
}

/// The first value that is not narrowed to the nearest half; empty if there is none.
template <class T>
std::string first_wrongly_narrowed(const std::vector<float>& values) {
  const auto result = narrowed<T>(values);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const auto wanted = T::nearest(values[i]); result[i].bits != wanted.bits)
      return "bits " + std::to_string(std::bit_cast<std::uint32_t>(values[i])) + " of f32 became " +
             std::to_string(result[i].bits) + " and not " + std::to_string(wanted.bits);
  return {};
}

/// Every non-negative half, the midpoint to the next, and the f32s next to both, with both signs. After the largest
/// half comes the value that would follow if exponents went on.
template <class T>
std::vector<float> borders() {
  std::vector<float> result;
  for (int bits = 0; bits < T::infinity; ++bits) {
    const auto here = T{static_cast<std::uint16_t>(bits)}.value();
    const auto step = bits == T::largest ? here - T{static_cast<std::uint16_t>(bits - 1)}.value()
                                         : T{static_cast<std::uint16_t>(bits + 1)}.value() - here;
    for (auto x : {static_cast<float>(here), static_cast<float>(here + step / 2)})
      for (auto y : {std::nextafter(x, -infinity), x, std::nextafter(x, infinity)}) {
        result.push_back(y);
        result.push_back(-y);
      }
  }
  return result;
}

} // namespace

TEST_CASE("the operations do what their names say") {
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

TEST_CASE("the result may overwrite either operand") {
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

TEST_CASE("a balanced tree has the bits of its pairs, even if it overwrites an operand") {
  const bucket_layout layout{{{dtype::f32, 700}, {dtype::f64, 333}, {dtype::i64, 91}, {dtype::u8, 130}}};
  // Unaligned to vectors, in the middle of segments.
  const auto part = byte_range{64, layout.size_bytes() - 128};
  std::mt19937_64 random{7};
  std::vector<std::vector<std::byte>> operands(8, std::vector<std::byte>(part.size_bytes()));
  for (auto& x : operands)
    std::ranges::generate(x, [&] { return static_cast<std::byte>(random()); });
  for (auto op : {reduce_op::sum, reduce_op::min, reduce_op::max, reduce_op::product})
    for (std::size_t count : {2, 4, 8}) {
      CAPTURE(to_string(op));
      CAPTURE(count);
      auto pairwise = operands;
      for (std::size_t width = 1; width < count; width *= 2)
        for (std::size_t i = 0; i < count; i += 2 * width)
          combine(layout, part, op, pairwise[i].data(), pairwise[i].data(), pairwise[i + width].data());
      std::vector<const std::byte*> begins;
      std::ranges::transform(operands, std::back_inserter(begins), [](const auto& x) { return x.data(); });
      begins.resize(count);
      std::vector<std::byte> out(part.size_bytes());
      combine_balanced(layout, part, op, out.data(), begins);
      CHECK(out == pairwise[0]);
      for (std::size_t over = 0; over < count; ++over) {
        auto copy = operands[over];
        begins[over] = copy.data();
        combine_balanced(layout, part, op, copy.data(), begins);
        CHECK(copy == pairwise[0]);
        begins[over] = operands[over].data();
      }
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

TEST_CASE("min and max order the zeros, and subnormals too") {
  for (auto [less, more] : {std::pair{-0.0f, 0.0f}, {1e-45f, 1e-40f}, {-1e-40f, -1e-45f}, {-infinity, -1e38f}})
    for (auto [x, y] : {std::pair{less, more}, {more, less}}) {
      CHECK(std::bit_cast<std::uint32_t>(one(reduce_op::min, x, y)) == std::bit_cast<std::uint32_t>(less));
      CHECK(std::bit_cast<std::uint32_t>(one(reduce_op::max, x, y)) == std::bit_cast<std::uint32_t>(more));
    }
  CHECK(std::signbit(one(reduce_op::min, 0.0, -0.0)));
  CHECK(!std::signbit(one(reduce_op::max, -0.0, 0.0)));
  CHECK(one(reduce_op::min, -2.5, -3.5) == -3.5);
  CHECK(one(reduce_op::max, -2.5, 3.5) == 3.5);
}

TEST_CASE("elements are divided, integers toward zero and by any divisor") {
  const auto divided = [](auto x, std::uint64_t divisor) {
    divide(dtype_of<decltype(x)>, reinterpret_cast<std::byte*>(&x), 1, divisor);
    return x;
  };
  CHECK(divided(7.0f, 2) == 3.5f);
  CHECK(divided(7.0, 3) == 7.0 / 3.0);
  CHECK(divided(std::int32_t{-7}, 2) == -3);
  CHECK(divided(std::uint8_t{255}, 10) == 25);
  CHECK(divided(std::numeric_limits<std::int64_t>::min(), 3) == std::numeric_limits<std::int64_t>::min() / 3);
  CHECK(divided(std::numeric_limits<std::int64_t>::min(), UINT64_MAX) == 0);
  CHECK(divided(std::numeric_limits<std::int64_t>::min(), std::uint64_t{1} << 63) == -1);
  CHECK(divided(std::int32_t{5}, std::uint64_t{1} << 32) == 0);
  CHECK(std::bit_cast<std::uint32_t>(divided(-nan_value, 2)) == 0x7fc00000u);
  CHECK(std::bit_cast<std::uint32_t>(divided(-nan_value, 1)) == 0xffc00000u);
}

TEST_CASE_TEMPLATE("widening is exact for every half", T, f16, bf16) {
  const auto halves = all_halves<T>();
  const auto floats = widened(halves);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto value = halves[i].value();
    const auto is_right = halves[i].is_nan() ? std::isnan(floats[i])
                                             : std::bit_cast<std::uint32_t>(static_cast<float>(value)) ==
                                                   std::bit_cast<std::uint32_t>(floats[i]);
    wrong += is_right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("narrowing gives every half back, and every NaN as the canonical one", T, f16, bf16) {
  const auto halves = all_halves<T>();
  const auto back = narrowed<T>(widened(halves));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < halves.size(); ++i)
    wrong += back[i].bits == (halves[i].is_nan() ? T::canonical_nan : halves[i].bits) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("the canonical NaNs and the borders of halves are the known ones") {
  const auto bits = []<class T>(T, float x) { return narrowed<T>({x})[0].bits; };
  CHECK(bits(f16{}, -nan_value) == 0x7e00);
  CHECK(bits(bf16{}, -nan_value) == 0x7fc0);
  CHECK(bits(f16{}, std::bit_cast<float>(0x7f800001u)) == 0x7e00);
  CHECK(bits(bf16{}, std::bit_cast<float>(0xff800001u)) == 0x7fc0);
  CHECK(bits(f16{}, 65519.996f) == 0x7bff);
  CHECK(bits(f16{}, -65520.0f) == 0xfc00);
  CHECK(bits(f16{}, infinity) == 0x7c00);
  CHECK(bits(f16{}, std::numeric_limits<float>::max()) == 0x7c00);
  CHECK(bits(bf16{}, std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(bits(bf16{}, std::bit_cast<float>(0x7f7f7fffu)) == 0x7f7f);
  CHECK(bits(f16{}, 0x1p-24f) == 0x0001);
  CHECK(bits(f16{}, 0x1p-25f) == 0x0000);
  CHECK(bits(f16{}, -0x1.000002p-25f) == 0x8001);
  CHECK(bits(f16{}, -0.0f) == 0x8000);
  CHECK(bits(bf16{}, std::numeric_limits<float>::denorm_min()) == 0x0000);
}

TEST_CASE_TEMPLATE("narrowing rounds to nearest, ties to even", T, f16, bf16) {
  CHECK(first_wrongly_narrowed<T>(borders<T>()) == "");
  std::mt19937 random{20240611};
  std::vector<float> values(500000);
  for (auto& x : values)
    x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  CHECK(first_wrongly_narrowed<T>(values) == "");
  // In f16's range: most random exponents are far from it.
  for (auto& x : values)
    x = std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), static_cast<int>(random() % 48) - 58);
  CHECK(first_wrongly_narrowed<T>(values) == "");
}

TEST_CASE_TEMPLATE("exactly the given number of elements is converted", T, f16, bf16) {
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<float> values(70, 3.0f);
    std::vector<T> halves(70, T{0x1234});
    narrow(half_type<T>, bytes_of(halves), bytes_of(values), n);
    std::vector<float> back(70, 7.0f);
    widen(half_type<T>, bytes_of(back), bytes_of(halves), n);
    for (std::size_t i = 0; i < 70; ++i) {
      REQUIRE(halves[i].bits == (i < n ? T::nearest(3.0).bits : 0x1234));
      REQUIRE(back[i] == (i < n ? 3.0f : 7.0f));
    }
  }
}

TEST_CASE("a part of a bucket is widened, divided and narrowed with the type of each segment in it") {
  const bucket_layout layout{{{dtype::f32, 20}, {dtype::f16, 50}, {dtype::i64, 3}, {dtype::bf16, 40}}};
  const auto sums = layout.sums();
  std::vector<std::byte> bucket(layout.size_bytes());
  add_shard(layout, 0, bucket);
  std::vector<std::byte> wide(sums.size_bytes());
  widen(layout, {0, layout.size_bytes()}, wide.data(), bucket.data());
  CHECK(wide == reference_sum(layout, 1, {0, 0}));
  std::vector<std::byte> divided = wide;
  divide(layout, {0, layout.size_bytes()}, divided.data(), 3);
  std::vector<std::byte> narrow_again(layout.size_bytes());
  narrow(layout, {0, layout.size_bytes()}, narrow_again.data(), divided.data());
  CHECK(narrow_again == reference_root(layout, 1, 3));
  // Also off the lines: multiples of 8 are element boundaries of all types.
  for (std::uint64_t first = 0; first <= layout.size_bytes(); first += 24)
    for (auto last = first; last <= layout.size_bytes(); last += 8) {
      const byte_range part{first, last};
      const auto from = layout.offset_in_sums(first);
      const auto size = layout.offset_in_sums(last) - from;
      std::vector<std::byte> wide_part(size);
      widen(layout, part, wide_part.data(), bucket.data() + first);
      REQUIRE(std::equal(wide_part.begin(), wide_part.end(), wide.begin() + static_cast<std::ptrdiff_t>(from)));
      divide(layout, part, wide_part.data(), 3);
      REQUIRE(std::equal(wide_part.begin(), wide_part.end(), divided.begin() + static_cast<std::ptrdiff_t>(from)));
      std::vector<std::byte> narrow_part(last - first);
      narrow(layout, part, narrow_part.data(), wide_part.data());
      REQUIRE(std::equal(narrow_part.begin(), narrow_part.end(),
                         narrow_again.begin() + static_cast<std::ptrdiff_t>(first)));
    }
}

TEST_CASE("16-bit floats are combined in f32, the others in their own type") {
  CHECK(sum_type(dtype::f16) == dtype::f32);
  CHECK(sum_type(dtype::bf16) == dtype::f32);
  for (auto type : {dtype::f32, dtype::f64, dtype::i32, dtype::i64, dtype::u8}) {
    CHECK(sum_type(type) == type);
    CHECK(check_reducible(type));
  }
  CHECK(check_reducible(dtype::f16));
  CHECK(check_reducible(dtype::bf16));
}

TEST_CASE("types that cannot be reduced are rejected and named") {
  for (auto type : {dtype::i8, dtype::i16, dtype::u16, dtype::u32, dtype::u64, dtype::boolean}) {
    const auto result = check_reducible(type);
    REQUIRE(!result);
    CHECK(result.error().code == errc::invalid_argument);
    CHECK(result.error().message.find(to_string(type)) != std::string::npos);
  }
  CHECK(check_reducible(bucket_layout{{{dtype::f32, 1}, {dtype::bf16, 1}}}));
  CHECK(!check_reducible(bucket_layout{{{dtype::f32, 1}, {dtype::i8, 1}}}));
}
