#pragma once

#include <troupe/types.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words as a pure
/// function of a counter and a key.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) noexcept;

/// A stream of random numbers that depends on what it is for, and on nothing else: not on the rank, not on what was
/// drawn before. A value; copies draw the same numbers. A UniformRandomBitGenerator, but prefer `uniform` and `normal`:
/// the standard library's distributions differ between implementations.
class random_stream {
 public:
  using result_type = std::uint32_t;

  /// The stream of a shard's step: `index` tells several apart.
  random_stream(std::uint64_t seed, step_id step, shard_id shard, std::uint32_t index = 0) noexcept;

  /// The stream of a name, for what is drawn once: initial parameters.
  random_stream(std::uint64_t seed, std::string_view name) noexcept;

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return 0xffffffffu; }
  result_type operator()() noexcept;

  /// In [0, 1), with 53 random bits.
  [[nodiscard]] double uniform() noexcept;

  /// Standard normal (Box and Muller); the bits depend on libm, which the numerics fingerprint covers.
  [[nodiscard]] double normal() noexcept;

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  unsigned used_ = 4;
};

} // namespace troupe
