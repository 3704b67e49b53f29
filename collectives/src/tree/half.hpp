#pragma once

#include <bit>
#include <cstdint>

namespace troupe::collectives {

// Conversions of 16-bit floats on their bits, without branches, so that loops over them become vector code on every
// processor. No used result of a floating-point instruction is subnormal or depends on how a subnormal operand is
// treated, so flush-to-zero settings change nothing. The rounding mode is to nearest, as for sums.

inline constexpr std::uint16_t f16_nan = 0x7e00;
inline constexpr std::uint16_t bf16_nan = 0x7fc0;

/// `x` if `condition` holds, else `y`. With ?: the compiler would keep floating-point instructions, which could trap,
/// on their side of a branch and would not vectorise the loop.
[[nodiscard]] inline std::uint32_t select(bool condition, std::uint32_t x, std::uint32_t y) noexcept {
  const auto mask = 0u - static_cast<std::uint32_t>(condition);
  return (x & mask) | (y & ~mask);
}

[[nodiscard]] inline float f32_from_bf16(std::uint16_t x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

[[nodiscard]] inline float f32_from_f16(std::uint16_t x) noexcept {
  constexpr std::uint32_t bias_difference = 112u << 23;
  const std::int32_t magnitude = x & 0x7fff;
  const auto moved = static_cast<std::uint32_t>(magnitude) << 13;
  const auto normal = moved + bias_difference;
  const auto special = normal + bias_difference;
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const auto result = select(magnitude < 0x0400, subnormal, select(magnitude < 0x7c00, normal, special));
  return std::bit_cast<float>(result | (static_cast<std::uint32_t>(x) & 0x8000u) << 16);
}

[[nodiscard]] inline std::uint16_t bf16_from_f32(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // A carry out of the mantissa gives the next exponent, and after the last one infinity.
  const auto rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
  return static_cast<std::uint16_t>(select(magnitude > 0x7f800000, bf16_nan, rounded));
}

[[nodiscard]] inline std::uint16_t f16_from_f32(float x) noexcept {
  constexpr std::uint32_t bias_difference = 112u << 13 << 10;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // Compared as signed numbers: before SSE4.1 vectors have no unsigned comparison.
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
  // 2^16 and above get infinity's exponent when shifted; slightly smaller values get there by rounding.
  const auto clipped = select(magnitude < 0x47800000, bits & 0x7fffffff, 0x47800000);
  const auto normal = (clipped - bias_difference + 0xfff + (clipped >> 13 & 1)) >> 13;
  // 0.5 has the step of subnormal halves, 2^-24, in its last place, so the sum is rounded there. This replaces a shift
  // by the exponent, which vectors have only since AVX2.
  const auto subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(clipped) + 0.5f) - 0x3f000000u;
  const auto result = select(magnitude < 0x38800000, subnormal, normal) | (bits >> 16 & 0x8000);
  return static_cast<std::uint16_t>(select(magnitude > 0x7f800000, f16_nan, result));
}

} // namespace troupe::collectives
