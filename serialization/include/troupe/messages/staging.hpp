#pragma once

#include <troupe/inspect.hpp>
#include <troupe/messages/transport.hpp>
#include <troupe/types.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

/// How joiners receive the state while the members of a generation continue to train.
namespace troupe {

/// A joiner's place in a staging group, which is a communicator beside that of a generation. The generation's members
/// are its first ranks. Over it they send the joiners the state, and the gradients that they reduce meanwhile.
struct staging_place {
  /// The sequence number of the members' `stage_command`.
  std::uint64_t number = 0;
  /// The members' generation.
  generation_id generation;
  rank_id rank;
  /// How many members there are, and how many joiners.
  std::uint32_t sources = 0;
  std::uint32_t joiners = 0;
  transport_kind transport = transport_kind::tcp;
  /// On which nodes the ranks are, in their order.
  std::vector<node_ranks> nodes;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;

  [[nodiscard]] bool is_on_one_node() const {
    return std::ranges::all_of(nodes, [this](const node_ranks& each) { return each.node == nodes.front().node; });
  }

  bool operator==(const staging_place&) const = default;
};

TROUPE_INSPECT(staging_place, number, generation, rank, sources, joiners, transport, nodes, data_address)

/// A joiner in a staging group has applied the members' steps, except for the last one or two. Not answered.
struct caught_up {
  run_id run;
  worker_id worker;
  /// The members' generation.
  generation_id generation;
  /// The number of its staging group.
  std::uint64_t staging = 0;
  step_id step;

  bool operator==(const caught_up&) const = default;
};

TROUPE_INSPECT(caught_up, run, worker, generation, staging, step)

/// Ends an exchange that will not be completed. Later requests for it fail too. From the driver.
struct exchange_ended {
  run_id run;
  generation_id generation;
  std::uint64_t sequence = 0;

  bool operator==(const exchange_ended&) const = default;
};

TROUPE_INSPECT(exchange_ended, run, generation, sequence)

} // namespace troupe
