#pragma once

#include <troupe/inspect.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>

/// How joiners are given the state while the members of a generation train on.
namespace troupe {

/// A joiner's place in a staging group: a communicator beside the one of a generation. The members of the generation
/// are its first ranks; over it they give the joiners the state, and the gradients that they reduce while they train
/// on.
struct staging_place {
  /// The sequence number of the `stage_command` that told the members.
  std::uint64_t number = 0;
  /// Of the others.
  generation_id generation;
  rank_id rank;
  /// How many members there are, and how many joiners.
  std::uint32_t sources = 0;
  std::uint32_t joiners = 0;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;

  bool operator==(const staging_place&) const = default;
};

TROUPE_INSPECT(staging_place, number, generation, rank, sources, joiners, data_address)

/// A joiner that follows the others in a staging group has applied what they have, but for the last step or two.
/// Pushed.
struct caught_up {
  run_id run;
  worker_id worker;
  /// Of the others.
  generation_id generation;
  /// The number of its staging group.
  std::uint64_t staging = 0;
  step_id step;

  bool operator==(const caught_up&) const = default;
};

TROUPE_INSPECT(caught_up, run, worker, generation, staging, step)

/// Gives up an exchange that will not be complete, now and later. From the driver.
struct exchange_ended {
  run_id run;
  generation_id generation;
  std::uint64_t sequence = 0;

  bool operator==(const exchange_ended&) const = default;
};

TROUPE_INSPECT(exchange_ended, run, generation, sequence)

} // namespace troupe
