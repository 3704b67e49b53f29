#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::tool {

namespace {

struct half {
  std::uint16_t bits;
};

struct brain_half {
  std::uint16_t bits;
};

template <class T>
double value_of(T x) {
  return static_cast<double>(x);
}

/// `long double` represents 64-bit integers exactly.
long double value_of(std::int64_t x) {
  return static_cast<long double>(x);
}

long double value_of(std::uint64_t x) {
  return static_cast<long double>(x);
}

double value_of(half x) {
  auto sign = (x.bits & 0x8000) != 0 ? -1.0 : 1.0;
  auto exponent = (x.bits >> 10) & 0x1f;
  auto fraction = static_cast<double>(x.bits & 0x3ff);
  if (exponent == 0x1f)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

double value_of(brain_half x) {
  auto bits = static_cast<std::uint32_t>(x.bits) << 16;
  auto value = float{};
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
T element(std::span<const std::byte> bytes, std::uint64_t index) {
  T result;
  std::memcpy(&result, bytes.data() + index * sizeof(T), sizeof(T));
  return result;
}

template <class T>
void compare_element(T left, T right, std::uint64_t index, tensor_difference& result) {
  auto x = value_of(left);
  auto y = value_of(right);
  auto left_is_nan = std::isnan(x);
  auto right_is_nan = std::isnan(y);
  result.left_nans += left_is_nan ? 1 : 0;
  result.right_nans += right_is_nan ? 1 : 0;
  if (std::memcmp(&left, &right, sizeof(T)) == 0)
    return;
  if (result.differing++ == 0)
    result.first = index;
  if (left_is_nan || right_is_nan || x == y)
    return;
  auto apart = std::fabs(x - y);
  auto size = std::max(std::fabs(x), std::fabs(y));
  result.max_absolute = std::max(result.max_absolute, static_cast<double>(apart));
  // The relative difference between an infinity and any other number is 1.
  result.max_relative = std::max(result.max_relative, std::isinf(size) ? 1 : static_cast<double>(apart / size));
}

template <class T>
tensor_difference compare_as(std::span<const std::byte> left, std::span<const std::byte> right) {
  auto result = tensor_difference{};
  result.elements = result.first = left.size() / sizeof(T);
  for (std::uint64_t i = 0; i < result.elements; ++i)
    compare_element(element<T>(left, i), element<T>(right, i), i, result);
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
  case dtype::u16:
    return compare_as<std::uint16_t>(left, right);
  case dtype::u32:
    return compare_as<std::uint32_t>(left, right);
  case dtype::u64:
    return compare_as<std::uint64_t>(left, right);
  }
  return {};
}

} // namespace troupe::tool
