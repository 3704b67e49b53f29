#pragma once

#include <troupe/inspect.hpp>
#include <troupe/messages/transport.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// The driver's messages to workers while they train.
namespace troupe {

/// Take a checkpoint and return from the step loop.
struct stop_command {
  bool operator==(const stop_command&) const = default;
};

TROUPE_INSPECT(stop_command)

/// Take a checkpoint.
struct checkpoint_command {
  bool operator==(const checkpoint_command&) const = default;
};

TROUPE_INSPECT(checkpoint_command)

/// Report, and form the next generation: members join or leave, or the run pauses. Ignored in any other generation.
struct regroup_command {
  generation_id generation;

  bool operator==(const regroup_command&) const = default;
};

TROUPE_INSPECT(regroup_command, generation)

/// Send joiners the state over a staging group while training continues. Ignored in any other generation or loop.
struct stage_command {
  generation_id generation;
  /// The node of each joiner, in the order of their ranks.
  std::vector<std::uint32_t> joiner_nodes;
  transport_kind transport = transport_kind::tcp;
  /// The loop of the training function that the joiners have reached, from 0.
  std::uint32_t loop = 0;

  bool operator==(const stage_command&) const = default;
};

TROUPE_INSPECT(stage_command, generation, joiner_nodes, transport, loop)

/// A command to all workers of a run. Commands are numbered from 1 and sent in order. A command takes effect after the
/// step whose barrier first carries its number, so all ranks execute it between the same two steps.
struct control_command {
  run_id run;
  std::uint64_t sequence = 0;
  std::variant<stop_command, checkpoint_command, regroup_command, stage_command> what;

  bool operator==(const control_command&) const = default;
};

TROUPE_INSPECT(control_command, run, sequence, what)

/// The worker's process may end.
struct release_worker {
  run_id run;

  bool operator==(const release_worker&) const = default;
};

TROUPE_INSPECT(release_worker, run)

/// Asks what the training thread does and what it waits for. Answered by `activity_answer`.
struct activity_question {
  run_id run;

  bool operator==(const activity_question&) const = default;
};

TROUPE_INSPECT(activity_question, run)

struct activity_answer {
  /// For people: "step 17, all_reduce of 4 MB, call 51, under way for 2.1 s; waits for rank 3".
  std::string text;

  bool operator==(const activity_answer&) const = default;
};

TROUPE_INSPECT(activity_answer, text)

} // namespace troupe
