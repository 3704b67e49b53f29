#include <troupe/data/conversion.hpp>

#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <type_traits>

namespace troupe::data {

namespace {

/// Calls `function` with a number of the type; returns whether there is one.
template <class Function>
bool with_number_of(dtype type, Function&& function) {
  switch (type) {
  case dtype::f32:
    return function(float{}), true;
  case dtype::f64:
    return function(double{}), true;
  case dtype::i8:
    return function(std::int8_t{}), true;
  case dtype::i16:
    return function(std::int16_t{}), true;
  case dtype::i32:
    return function(std::int32_t{}), true;
  case dtype::i64:
    return function(std::int64_t{}), true;
  case dtype::u8:
    return function(std::uint8_t{}), true;
  case dtype::u16:
    return function(std::uint16_t{}), true;
  case dtype::u32:
    return function(std::uint32_t{}), true;
  case dtype::u64:
    return function(std::uint64_t{}), true;
  case dtype::boolean:
    return function(bool{}), true;
  case dtype::f16:
  case dtype::bf16:
    return false;
  }
  return false;
}

template <class From, class To>
void convert_all(std::span<const std::byte> from, std::byte* target) {
  if constexpr (std::is_same_v<From, To>) {
    if (!from.empty())
      std::memcpy(target, from.data(), from.size());
  } else {
    for (std::size_t i = 0; i < from.size() / sizeof(From); ++i) {
      From number;
      std::memcpy(&number, from.data() + i * sizeof(From), sizeof(From));
      // A signed char is a number here.
      const auto converted = static_cast<To>(number); // NOLINT(bugprone-signed-char-misuse)
      std::memcpy(target + i * sizeof(To), &converted, sizeof(To));
    }
  }
}

} // namespace

expected<void> convert(std::span<const std::byte> from, dtype from_type, dtype to_type, std::byte* target) {
  auto done = false;
  with_number_of(from_type, [&]<class From>(From) {
    done = with_number_of(to_type, [&]<class To>(To) { convert_all<From, To>(from, target); });
  });
  if (!done)
    return fail(errc::mismatch, fmt::format("{} cannot be converted to {}", to_string(from_type), to_string(to_type)));
  return {};
}

} // namespace troupe::data
