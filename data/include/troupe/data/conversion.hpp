#pragma once

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <span>

namespace troupe::data {

/// Writes numbers as elements of another type to `target`, which has room for them and need not be aligned. As in C++,
/// a floating-point number out of an integer's range is undefined. Fails with `errc::mismatch` for floats of 16 bits.
[[nodiscard]] expected<void> convert(std::span<const std::byte> from, dtype from_type, dtype to_type,
                                     std::byte* target);

} // namespace troupe::data
