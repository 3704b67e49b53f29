#pragma once

#include <troupe/dtype.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::serialization {

/// The size in bytes of a tensor described by an untrusted file; `nullopt` if it does not fit into 64 bits. A tensor
/// with a dimension of zero is empty, however large its other dimensions are.
[[nodiscard]] inline std::optional<std::uint64_t> checked_size(dtype type, const std::vector<std::uint64_t>& shape) {
  if (std::ranges::find(shape, 0u) != shape.end())
    return 0;
  auto result = std::uint64_t{size_of(type)};
  for (auto dimension : shape)
    if (__builtin_mul_overflow(result, dimension, &result))
      return std::nullopt;
  return result;
}

} // namespace troupe::serialization
