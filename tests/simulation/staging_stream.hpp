#pragma once

#include "number_chain.hpp"

#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <variant>
#include <vector>

namespace troupe::simulation {

/// A staging group, seen from outside: what its sources have given so far, and whether it still holds. What was given
/// comes to a joiner at any time, or, once the group is broken, perhaps not.
struct staging_stream {
  struct gradient {
    step_id step;
    std::uint64_t value = 0;
  };
  struct evaluation {
    std::vector<double> values;
  };
  /// The joiner is one of the others after this step.
  struct end {
    step_id step;
    std::uint64_t commands_agreed = 0;
    std::uint64_t evaluations = 0;
  };
  using frame = std::variant<gradient, evaluation, end>;

  std::uint32_t sources = 0;
  /// By rank.
  std::map<rank_id, number_chain> snapshots;
  std::vector<frame> frames;
  /// The last step whose gradient was given.
  step_id latest;
  bool is_broken = false;

  [[nodiscard]] bool has_snapshot() const { return snapshots.size() == sources; }
};

} // namespace troupe::simulation
