#pragma once

#include <cstdint>
#include <random>

/// An approximately normal number that depends only on seed and index: the sum of twelve uniform numbers, minus six.
inline float normal_at(std::uint64_t seed, std::uint64_t index) {
  std::mt19937_64 engine{seed * 1'000'003 + index};
  double sum = -6.0;
  for (int i = 0; i < 12; ++i)
    sum += static_cast<double>(engine() >> 11U) * 0x1.0p-53;
  return static_cast<float>(sum);
}
