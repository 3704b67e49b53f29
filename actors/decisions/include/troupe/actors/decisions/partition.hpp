#pragma once

#include <troupe/types.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// A member of a generation that has ended, as far as the data network is concerned.
struct member_reach {
  std::uint32_t node = 0;
  bool has_state = false;
  /// The ranks that do not answer it.
  std::vector<rank_id> unreachable;
};

/// The nodes to leave out because the data network is cut. Keeps as many members with the state as possible, then as
/// many members as possible; of equal sides the one with the lowest rank. A cut between two nodes counts only if a
/// member of each has reported one of the other: a starved or frozen member still receives answers. `members` are by
/// rank. Empty if nothing is cut. Pure.
[[nodiscard]] std::vector<std::uint32_t> choose_nodes_cut_off(std::span<const member_reach> members);

} // namespace troupe::actors
