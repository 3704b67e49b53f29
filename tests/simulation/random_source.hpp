#pragma once

#include <cstdint>

namespace troupe::simulation {

/// A stirring of 64 bits (the finaliser of splitmix64).
constexpr std::uint64_t stir(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// All randomness of a schedule comes from here, so that its number repeats it.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) noexcept : state_(stir(seed)) {}

  /// 0 to limit - 1.
  std::uint32_t below(std::uint32_t limit) noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    return static_cast<std::uint32_t>(((stir(state_) >> 32) * limit) >> 32);
  }

  std::uint32_t between(std::uint32_t first, std::uint32_t last) noexcept { return first + below(last - first + 1); }

  /// True once in `n`.
  bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

} // namespace troupe::simulation
