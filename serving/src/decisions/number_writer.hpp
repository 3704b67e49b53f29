#pragma once

#include <troupe/data/column.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::serving {

/// Whether a type has no numbers behind a decimal point.
[[nodiscard]] constexpr bool is_float(dtype type) noexcept {
  return type == dtype::f32 || type == dtype::f64;
}

template <class T>
void append_bytes(std::vector<std::byte>& target, T value) {
  const auto size = target.size();
  target.resize(size + sizeof value);
  std::memcpy(target.data() + size, &value, sizeof value);
}

/// Appends an integer if it is in the range of T.
template <class T, class Number>
[[nodiscard]] bool append_integer(std::vector<std::byte>& target, Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    // 2^63 and 2^64 are doubles, and the greatest integers below them are not.
    if (!(std::trunc(number) == number))
      return false;
    if (number >= -0x1p63 && number < 0x1p63)
      return append_integer<T>(target, static_cast<std::int64_t>(number));
    if (number >= 0 && number < 0x1p64)
      return append_integer<T>(target, static_cast<std::uint64_t>(number));
    return false;
  } else {
    if (!std::in_range<T>(number))
      return false;
    append_bytes(target, static_cast<T>(number));
    return true;
  }
}

/// Appends a number (a double, or an integer of 64 bits) as an element of a type; false if it has none that is near:
/// an integer out of range, a fraction for an integer, a finite number beyond f32.
template <class Number>
[[nodiscard]] bool append_number(std::vector<std::byte>& target, dtype type, Number number) {
  switch (type) {
  case dtype::f32: {
    const auto value = static_cast<double>(number);
    if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max())
      return false;
    append_bytes(target, static_cast<float>(number));
    return true;
  }
  case dtype::f64:
    append_bytes(target, static_cast<double>(number));
    return true;
  case dtype::i8:
    return append_integer<std::int8_t>(target, number);
  case dtype::i16:
    return append_integer<std::int16_t>(target, number);
  case dtype::i32:
    return append_integer<std::int32_t>(target, number);
  case dtype::i64:
    return append_integer<std::int64_t>(target, number);
  case dtype::u8:
    return append_integer<std::uint8_t>(target, number);
  case dtype::u16:
    return append_integer<std::uint16_t>(target, number);
  case dtype::u32:
    return append_integer<std::uint32_t>(target, number);
  case dtype::u64:
    return append_integer<std::uint64_t>(target, number);
  case dtype::boolean:
    if (number != Number{0} && number != Number{1})
      return false;
    append_bytes(target, static_cast<std::uint8_t>(number));
    return true;
  case dtype::f16:
  case dtype::bf16:
    return false;
  }
  return false;
}

} // namespace troupe::serving
