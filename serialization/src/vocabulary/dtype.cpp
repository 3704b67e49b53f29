#include <troupe/dtype.hpp>

#include <array>
#include <utility>

namespace troupe {

namespace {

constexpr std::array<std::pair<dtype, std::string_view>, 13> names{{
    {dtype::f32, "f32"},
    {dtype::f64, "f64"},
    {dtype::f16, "f16"},
    {dtype::bf16, "bf16"},
    {dtype::i32, "i32"},
    {dtype::i64, "i64"},
    {dtype::u8, "u8"},
    {dtype::i8, "i8"},
    {dtype::i16, "i16"},
    {dtype::boolean, "bool"},
    {dtype::u16, "u16"},
    {dtype::u32, "u32"},
    {dtype::u64, "u64"},
}};

} // namespace

std::size_t size_of(dtype type) noexcept {
  switch (type) {
  case dtype::f64:
  case dtype::i64:
  case dtype::u64:
    return 8;
  case dtype::f32:
  case dtype::i32:
  case dtype::u32:
    return 4;
  case dtype::f16:
  case dtype::bf16:
  case dtype::i16:
  case dtype::u16:
    return 2;
  case dtype::u8:
  case dtype::i8:
  case dtype::boolean:
    return 1;
  }
  return 0;
}

std::string_view to_string(dtype type) noexcept {
  for (auto [value, name] : names)
    if (value == type)
      return name;
  return "invalid";
}

std::optional<dtype> parse_dtype(std::string_view name) noexcept {
  for (auto [value, known] : names)
    if (known == name)
      return value;
  return std::nullopt;
}

bool is_dtype(std::uint8_t value) noexcept {
  return value >= 1 && value <= names.size();
}

} // namespace troupe
