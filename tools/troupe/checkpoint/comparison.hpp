#pragma once

#include <troupe/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::tool {

/// The differences between two tensors of the same dtype and size.
struct tensor_difference {
  std::uint64_t elements = 0;
  /// Elements whose bits differ: 0.0 and -0.0 differ, and two NaNs may.
  std::uint64_t differing = 0;
  /// Index of the first of them; `elements` if there is none.
  std::uint64_t first = 0;
  /// The maxima of |a - b| and |a - b| / max(|a|, |b|) over elements without a NaN on either side.
  double max_absolute = 0;
  double max_relative = 0;
  std::uint64_t left_nans = 0;
  std::uint64_t right_nans = 0;

  bool operator==(const tensor_difference&) const = default;
};

/// Compares the elements of two tensors of equal size.
[[nodiscard]] tensor_difference compare(dtype type, std::span<const std::byte> left, std::span<const std::byte> right);

} // namespace troupe::tool
