#pragma once

#include "number_chain.hpp"

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::simulation {

/// The training function of a schedule: evaluations and loops of steps, and what it throws.
struct program {
  struct loop {
    /// The step that it ends with.
    std::uint64_t end = 0;
    std::uint32_t evaluations_before = 0;
  };

  struct exception {
    enum class place : std::uint8_t { before_reduction, behind_barrier };
    enum class recurrence : std::uint8_t { once, always };

    step_id step;
    place where = place::before_reduction;
    recurrence how = recurrence::once;
  };

  std::vector<loop> loops;
  /// The body evaluates in every step that this divides; 0 for none.
  std::uint64_t evaluates_every = 0;
  std::optional<exception> throws;

  [[nodiscard]] bool evaluates_in(step_id step) const noexcept {
    return evaluates_every != 0 && step.value % evaluates_every == 0;
  }
};

/// What a process does differently from the others.
enum class flaw : std::uint8_t {
  none,
  other_build,
  other_numerics,
  other_plan,
  /// Its training function returns with another state.
  other_result,
};

/// What a process that ends in this state says of it.
inline std::string result_of(const number_chain& state, flaw has) {
  return (has == flaw::other_result ? "other " : "") + std::to_string(state.value);
}

/// What the shards of one rank add to an evaluation of the state.
inline std::uint64_t evaluated_shards(const number_chain& state, shard_range range) noexcept {
  return state.contributions({1'000 + state.step.value}, range);
}

/// What an evaluation of a state finds.
inline std::vector<double> evaluation_from(std::uint64_t sum) {
  return {static_cast<double>(sum >> 12)};
}

/// The same in the undisturbed run, after `step`.
inline std::vector<double> undisturbed_evaluation(step_id step) {
  return evaluation_from(evaluated_shards(undisturbed_chain()[step.value], {0, shards}));
}

} // namespace troupe::simulation
