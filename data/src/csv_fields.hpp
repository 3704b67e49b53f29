#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace troupe::data {

/// Without spaces and tabs at both ends.
inline std::string_view trimmed(std::string_view field) {
  while (!field.empty() && (field.front() == ' ' || field.front() == '\t'))
    field.remove_prefix(1);
  while (!field.empty() && (field.back() == ' ' || field.back() == '\t'))
    field.remove_suffix(1);
  return field;
}

/// Parses the whole field as a number; false for any other text, and for numbers that are out of range or not finite.
template <class T>
bool parse_number(std::string_view field, T& out) {
  field = trimmed(field);
  if (field.starts_with('+') && field.size() > 1 && field[1] != '-')
    field.remove_prefix(1);
  auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), out);
  if (code != std::errc{} || end != field.data() + field.size())
    return false;
  if constexpr (std::is_floating_point_v<T>)
    return std::isfinite(out);
  return true;
}

/// Whether other programs write this for a value that is missing.
inline bool often_missing(std::string_view field) {
  auto text = std::string{trimmed(field)};
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr auto known = std::array{"nan", "-nan", "na", "n/a", "null", "none", "nil", "?"};
  return std::ranges::find(known, text) != known.end();
}

} // namespace troupe::data
