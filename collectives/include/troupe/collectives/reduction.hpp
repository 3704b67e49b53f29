#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::collectives {

/// How contributions are combined, element by element. A mean is the sum divided once at the end, truncated for
/// integers. Integer sums and products wrap around. If either side is NaN the result is the canonical quiet NaN: which
/// NaN a processor returns depends on the order of operands, and compilers may swap them. For min and max, -0 is less
/// than +0.
enum class reduce_op : std::uint8_t { sum, mean, min, max, product };

[[nodiscard]] std::string_view to_string(reduce_op op) noexcept;

/// Fails with `errc::invalid_argument` for a type that cannot be reduced: f32, f64, f16, bf16, i32, i64 and u8 can.
[[nodiscard]] expected<void> check_reducible(dtype type);
[[nodiscard]] expected<void> check_reducible(const bucket_layout& layout);

/// The type in which elements of `type` are combined: f32 for f16 and bf16, itself for the others.
[[nodiscard]] dtype sum_type(dtype type) noexcept;

/// out[i] = left[i] op right[i], for a type that is its own `sum_type`. `out` may be `left` or `right`; otherwise the
/// three do not overlap. `mean` adds.
void combine(dtype type, reduce_op op, std::byte* out, const std::byte* left, const std::byte* right,
             std::uint64_t elements) noexcept;

/// `combine` for the part `range` of a bucket of sums. The pointers refer to the part's first byte. Bounds lie on
/// element boundaries.
void combine(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out, const std::byte* left,
             const std::byte* right) noexcept;

/// Combines 2, 4 or 8 operands, neighbours first: ((a op b) op (c op d)) op ..., with the bits of `combine`, in one
/// pass. `out` may be any operand; otherwise nothing overlaps.
void combine_balanced(const bucket_layout& layout, byte_range range, reduce_op op, std::byte* out,
                      std::span<const std::byte* const> operands) noexcept;

/// data[i] /= divisor, for a type that is its own `sum_type`. The divisor is not 0; 1 leaves the data unchanged.
void divide(dtype type, std::byte* data, std::uint64_t elements, std::uint64_t divisor) noexcept;

/// Converts elements of `type` to its `sum_type`, exactly. `out` and `in` do not overlap. Copies if the types are
/// equal.
void widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements) noexcept;

/// Converts back: rounds to nearest, ties to even. Overflow gives infinity; every NaN becomes the canonical one.
void narrow(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements) noexcept;

/// The three for the part `range` of a bucket of `layout`, whose bounds lie on element boundaries. Pointers refer to
/// the part's first byte: in a bucket of `layout` for `widen`'s in and `narrow`'s out, in one of `layout.sums()` for
/// the others.
void divide(const bucket_layout& layout, byte_range range, std::byte* data, std::uint64_t divisor) noexcept;
void widen(const bucket_layout& layout, byte_range range, std::byte* out, const std::byte* in) noexcept;
void narrow(const bucket_layout& layout, byte_range range, std::byte* out, const std::byte* in) noexcept;

} // namespace troupe::collectives
