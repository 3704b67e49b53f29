#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::collectives {

/// How contributions are combined, element by element. A mean is the sum divided once at the end, truncated for
/// integers. Integer sums and products wrap around. A NaN on either side wins, and is always the canonical quiet NaN:
/// which NaN a processor would return depends on the order of operands, which compilers may exchange.
enum class reduce_op : std::uint8_t { sum, mean, min, max, product };

[[nodiscard]] std::string_view to_string(reduce_op op) noexcept;

/// Fails with `errc::invalid_argument` for a type that cannot be reduced: f32, f64, i32, i64 and u8 can.
[[nodiscard]] expected<void> check_reducible(dtype type);
[[nodiscard]] expected<void> check_reducible(const bucket_layout& layout);

/// out[i] = left[i] op right[i], for a type that passes `check_reducible`. `out` may be `left` or `right`, else the
/// three do not overlap. `mean` adds.
void combine(dtype type, reduce_op op, std::byte* out, const std::byte* left, const std::byte* right,
             std::uint64_t elements) noexcept;

/// `combine` for the part `range` of a bucket; the pointers are those of the part's first byte. Bounds lie on element
/// boundaries.
void combine(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out, const std::byte* left,
             const std::byte* right) noexcept;

/// data[i] /= divisor.
void divide(dtype type, std::byte* data, std::uint64_t elements, std::uint32_t divisor) noexcept;

} // namespace troupe::collectives
