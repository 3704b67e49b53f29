#pragma once

#include <troupe/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

namespace troupe::serialization {

/// The index of the first byte that is not a valid `bool` (0 or 1), for `dtype::boolean`. Reading such a byte as a
/// `bool` would be undefined behaviour.
[[nodiscard]] inline std::optional<std::size_t> find_invalid_boolean(dtype type, std::span<const std::byte> bytes) {
  if (type != dtype::boolean)
    return std::nullopt;
  auto found = std::ranges::find_if(bytes, [](std::byte x) { return x > std::byte{1}; });
  return found == bytes.end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - bytes.begin())};
}

} // namespace troupe::serialization
