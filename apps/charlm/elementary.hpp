#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// nvcc also compiles this file, as C++17, and makes these functions available on the device.
#if defined(__CUDACC__)
#define CHARLM_HOST_DEVICE __host__ __device__
#else
#define CHARLM_HOST_DEVICE
#endif

/// Elementary functions made of additions and multiplications in a fixed order. The last bits of the C library's
/// functions depend on its version and on the processor's features. These do not, and the compiler can vectorise them.
namespace charlm {

template <class To, class From>
[[nodiscard]] CHARLM_HOST_DEVICE inline To bits_as(From x) noexcept {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  To result;
  std::memcpy(&result, &x, sizeof(result));
  return result;
}

/// e^x for x <= 0, within 2 units in the last place; at most e^-87 below -87. NaN gives NaN. The polynomial is Cephes'
/// (expf).
[[nodiscard]] CHARLM_HOST_DEVICE inline float exp_of_nonpositive(float x) noexcept {
  const float round_shift = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer that stands in the low bits
  x = x < -87.0F ? -87.0F : x;
  const float shifted = x * 1.44269504F + round_shift;
  const float n = shifted - round_shift;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float power = (p * (r * r) + r) + 1.0F;
  const std::uint32_t exponent = bits_as<std::uint32_t>(shifted) - bits_as<std::uint32_t>(round_shift) + 127U;
  return power * bits_as<float>(exponent << 23U);
}

/// tanh(x) with an absolute error below 2e-7, odd in x. NaN gives NaN.
[[nodiscard]] CHARLM_HOST_DEVICE inline float tanh_of(float x) noexcept {
  const float t = exp_of_nonpositive(-2.0F * std::fabs(x));
  return std::copysign((1.0F - t) / (1.0F + t), x);
}

/// The natural logarithm of a positive normal number, within 1e-15 relative to max(1, |log x|). Other values are
/// returned unchanged.
[[nodiscard]] CHARLM_HOST_DEVICE inline double log_of_positive(double x) noexcept {
  const auto bits = bits_as<std::uint64_t>(x);
  // Includes the sign bit, which makes it too large for negative numbers.
  const auto biased = static_cast<std::uint32_t>(bits >> 52U);
  if (biased == 0 || biased >= 0x7ffU)
    return x;
  int exponent = static_cast<int>(biased) - 1022;
  double mantissa = bits_as<double>((bits & ((std::uint64_t{1} << 52U) - 1)) | (std::uint64_t{1022} << 52U));
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2.0;
    --exponent;
  }
  // log m = 2 atanh((m - 1) / (m + 1)); the argument is below 0.172, so eleven terms are enough.
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  double sum = 0.0;
  for (int k = 21; k >= 1; k -= 2)
    sum = sum * (z * z) + 1.0 / k;
  return 2.0 * z * sum + exponent * 0.69314718055994531;
}

} // namespace charlm
