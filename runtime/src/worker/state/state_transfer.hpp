#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/messages.hpp>
#include <troupe/tracked_state.hpp>

#include <span>

namespace troupe::runtime {

/// The data transferred in addition to the tracked tensors.
struct transferred_extras {
  metric_map last_metrics;
};

/// Transfers the members' state to the joiners of a generation, in place. All ranks call it, with the same joiners, at
/// the same boundary between steps, having tracked the same tensors. The n members share the work: member c mod n sends
/// chunk c, so a joiner gets everything in (bytes / bandwidth), and each member sends bytes / n to each joiner. Fails
/// as the communicator does; a joiner's state is then invalid.
[[nodiscard]] expected<void> transfer_state(collectives::communicator& group, std::span<const rank_id> joiners,
                                            tracked_state& state, transferred_extras& extras);

} // namespace troupe::runtime
