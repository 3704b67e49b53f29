#pragma once

#include "number_chain.hpp"

#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace troupe::simulation {

/// A staging group, seen from outside: what its sources have given so far, and whether it still holds. What was given
/// comes to a joiner at any time, or, once the group is broken, perhaps not.
struct staging_stream {
  struct frame {
    /// Else the joiner is one of the others after this step.
    bool is_gradient = true;
    step_id step;
    /// The gradient, or what the boundary's barrier has agreed on.
    std::uint64_t value = 0;
  };

  std::uint32_t sources = 0;
  /// By rank.
  std::map<rank_id, number_chain> snapshots;
  std::vector<frame> frames;
  bool is_broken = false;

  [[nodiscard]] bool has_snapshot() const { return snapshots.size() == sources; }
};

} // namespace troupe::simulation
