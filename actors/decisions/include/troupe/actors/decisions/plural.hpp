#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>

namespace troupe::actors {

/// A number with its noun, for people: "1 GPU", "2 GPUs", "0.25 GPU".
inline std::string plural(double n, const std::string& noun) {
  char text[32];
  auto whole = n == std::floor(n);
  auto end = whole ? std::to_chars(text, text + sizeof(text), n, std::chars_format::fixed, 0).ptr
                   : std::to_chars(text, text + sizeof(text), n, std::chars_format::general, 4).ptr;
  return std::string{text, end} + " " + noun + (n == 0 || n > 1 ? "s" : "");
}

/// The same for whole numbers.
template <std::integral Number>
std::string plural(Number n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

} // namespace troupe::actors
