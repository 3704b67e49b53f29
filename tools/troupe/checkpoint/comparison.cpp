#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::tool {

namespace {

/// Holds 64 bits of an integer exactly where it has 80 bits itself.
using wide = long double;

struct half {
  std::uint16_t bits;
};

struct brain_half {
  std::uint16_t bits;
};

template <class T>
wide value_of(T x) {
  return static_cast<wide>(x);
}

wide value_of(half x) {
  auto sign = (x.bits & 0x8000) != 0 ? -1.0L : 1.0L;
  auto exponent = (x.bits >> 10) & 0x1f;
  auto fraction = static_cast<wide>(x.bits & 0x3ff);
  if (exponent == 0x1f)
    return fraction == 0 ? sign * std::numeric_limits<wide>::infinity() : std::numeric_limits<wide>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

wide value_of(brain_half x) {
  auto bits = static_cast<std::uint32_t>(x.bits) << 16;
  auto value = float{};
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
tensor_difference compare_as(std::span<const std::byte> left, std::span<const std::byte> right) {
  auto result = tensor_difference{};
  result.elements = result.first = left.size() / sizeof(T);
  for (std::uint64_t i = 0; i < result.elements; ++i) {
    auto a_bytes = left.subspan(i * sizeof(T), sizeof(T));
    auto b_bytes = right.subspan(i * sizeof(T), sizeof(T));
    T a, b;
    std::memcpy(&a, a_bytes.data(), sizeof(T));
    std::memcpy(&b, b_bytes.data(), sizeof(T));
    auto x = value_of(a);
    auto y = value_of(b);
    result.left_nans += std::isnan(x) ? 1 : 0;
    result.right_nans += std::isnan(y) ? 1 : 0;
    if (std::memcmp(a_bytes.data(), b_bytes.data(), sizeof(T)) == 0)
      continue;
    if (result.differing++ == 0)
      result.first = i;
    if (std::isnan(x) || std::isnan(y) || x == y)
      continue;
    auto apart = std::fabs(x - y);
    auto size = std::max(std::fabs(x), std::fabs(y));
    result.max_absolute = std::max(result.max_absolute, static_cast<double>(apart));
    // Of an infinity and anything else, all is different.
    result.max_relative = std::max(result.max_relative, std::isinf(size) ? 1 : static_cast<double>(apart / size));
  }
  return result;
}

} // namespace

tensor_difference compare(dtype type, std::span<const std::byte> left, std::span<const std::byte> right) {
  switch (type) {
  case dtype::f32:
    return compare_as<float>(left, right);
  case dtype::f64:
    return compare_as<double>(left, right);
  case dtype::f16:
    return compare_as<half>(left, right);
  case dtype::bf16:
    return compare_as<brain_half>(left, right);
  case dtype::i32:
    return compare_as<std::int32_t>(left, right);
  case dtype::i64:
    return compare_as<std::int64_t>(left, right);
  case dtype::i16:
    return compare_as<std::int16_t>(left, right);
  case dtype::i8:
    return compare_as<std::int8_t>(left, right);
  case dtype::u8:
  case dtype::boolean:
    return compare_as<std::uint8_t>(left, right);
  }
  return {};
}

} // namespace troupe::tool
