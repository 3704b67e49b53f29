#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/messages.hpp>
#include <troupe/tracked_state.hpp>

#include <span>

namespace troupe::runtime {

/// What is transferred beside the tracked tensors.
struct transferred_extras {
  metric_map last_metrics;
};

/// Gives the state of those who have it to the joiners of a generation, in place. All ranks call it, with the same
/// joiners, at the same boundary between steps, having tracked the same tensors. Each who has the state sends its
/// share: chunk c goes from the (c mod n)th of them, so that a joiner gets all in (bytes / bandwidth), and the others
/// send bytes / n for each joiner. Fails as the communicator does; a joiner's state is of no use then.
[[nodiscard]] expected<void> transfer_state(collectives::communicator& group, std::span<const rank_id> joiners,
                                            tracked_state& state, transferred_extras& extras);

} // namespace troupe::runtime
