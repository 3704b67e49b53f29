#pragma once

#include "random_source.hpp"

#include <troupe/types.hpp>

#include <array>
#include <cstdint>

namespace troupe::simulation {

/// V of the simulated program.
inline constexpr std::uint32_t shards = 8;
inline constexpr std::uint64_t most_steps = 14;

/// The state of a replica: a number that depends on every step that was ever applied, on their order, and on every
/// shard of each. A step that is lost, applied twice or summed over wrong shards gives another number for ever.
struct number_chain {
  std::uint64_t value = 0x7472'6f75'7065;
  /// The last step that is in it.
  step_id step;

  bool operator==(const number_chain&) const = default;

  /// What one shard contributes to the next step. Sums of these do not depend on who computes which.
  [[nodiscard]] std::uint64_t contribution(step_id next, std::uint32_t shard) const noexcept {
    return stir(value ^ stir(next.value * shards + shard));
  }

  [[nodiscard]] std::uint64_t contributions(step_id next, shard_range range) const noexcept {
    auto sum = std::uint64_t{0};
    for (auto shard = range.first; shard < range.last; ++shard)
      sum += contribution(next, shard);
    return sum;
  }

  void apply(step_id next, std::uint64_t gradient) noexcept {
    value = stir(value ^ stir(gradient + next.value));
    step = next;
  }
};

/// The chain of a run in which nothing happens, by step.
inline const std::array<number_chain, most_steps + 1>& undisturbed_chain() {
  static const auto chain = [] {
    std::array<number_chain, most_steps + 1> result;
    for (std::uint64_t k = 1; k <= most_steps; ++k) {
      result[k] = result[k - 1];
      result[k].apply({k}, result[k - 1].contributions({k}, {0, shards}));
    }
    return result;
  }();
  return chain;
}

} // namespace troupe::simulation
