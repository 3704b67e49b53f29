#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::boosting {

/// A sum of doubles without rounding, in fixed point: the same for any order of the numbers, and for any distribution
/// over workers, whose words are added as integers. At most 2^30 numbers before `words`.
class exact_sum {
 public:
  /// 32 bits each, from 2^-1088 to beyond 2^1024; then how many numbers were NaN, infinite, and minus infinite.
  static constexpr std::size_t digits = 68;
  static constexpr std::size_t size = digits + 3;

  void add(double value) noexcept;

  /// In the form in which the words of up to 2^30 sums can be added.
  [[nodiscard]] std::span<const std::int64_t, size> words() noexcept;

  /// The value of words that were added: deterministic, and off by less than a unit in the last place.
  [[nodiscard]] static double value_of(std::span<const std::int64_t, size> words) noexcept;

 private:
  std::array<std::int64_t, size> words_{};
};

} // namespace troupe::boosting
