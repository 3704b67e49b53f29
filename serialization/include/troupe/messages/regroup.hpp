#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// Membership: what a worker reports when its group is gone, its place in the next one, and the exchanges over the
/// control plane by which the members of a group find each other.
namespace troupe {

/// Which communicator carries the gradients.
enum class transport_kind : std::uint8_t {
  self = 1,
  gloo = 2,
  shm = 3,
  hierarchical = 4,
};

TROUPE_INSPECT_ENUM(transport_kind, self, hierarchical)

/// A worker's place in a generation, and who else is in it.
struct group_place {
  /// 0 for a joiner that has no place yet.
  generation_id generation;
  /// Which start of the run this belongs to, from 1: one that is started again from a checkpoint begins its next.
  std::uint32_t attempt = 1;
  /// Why this generation was formed, for people; empty for the first.
  std::string reason;
  rank_id rank;
  std::uint32_t world_size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;
  std::uint32_t node_rank = 0;
  /// By rank.
  std::vector<shard_range> ownership;
  transport_kind transport = transport_kind::self;
  /// The node of each rank, as indices: ranks of one node can share memory.
  std::vector<std::uint32_t> nodes;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;
  /// The one by which other hosts reach it.
  std::string host_address;

  bool operator==(const group_place&) const = default;
};

TROUPE_INSPECT(group_place, generation, attempt, reason, rank, world_size, local_rank, local_world_size, node_rank,
               ownership, transport, nodes, data_address, host_address)

/// What a worker knows once its group is gone and no thread of its own touches memory under that generation any more.
/// Sent by its training thread when a collective operation was aborted or found a peer missing, when a command says so,
/// and by a joiner that asks for its first place, or has followed the others to where they are. Answered by
/// `next_generation` when all who are left have reported; fails when the run is ending. Repeating it is harmless.
struct regroup_report {
  run_id run;
  /// The generation that is over; 0 from a joiner that was in none.
  generation_id generation;
  worker_id worker;
  /// Whether it has the run's state: a joiner has none until somebody gives it.
  bool has_state = true;
  /// Whether it stands between two steps, where joiners can be let in.
  bool between_steps = false;
  /// Whether a step was under way.
  bool in_step = false;
  /// The last step whose barrier this worker has committed: it counts as applied.
  step_id committed;
  /// Whether it holds the reduced gradient of the step after that one.
  bool holds_next = false;
  /// The highest command that the barrier of `committed` has agreed on.
  std::uint64_t commands_agreed = 0;
  /// How many evaluations it has finished; it holds the result of the last.
  std::uint64_t evaluations = 0;
  /// The number of the staging group that this joiner was in last; 0 for none.
  std::uint64_t staging = 0;
  /// How this worker found out, if nobody had told it.
  error reason;

  bool operator==(const regroup_report&) const = default;
};

TROUPE_INSPECT(regroup_report, run, generation, worker, has_state, between_steps, in_step, committed, holds_next,
               commands_agreed, evaluations, staging, reason)

/// What of the tracked state a rank compares with the others at the first barrier of its generation.
enum class state_comparison : std::uint8_t {
  /// The slice whose turn it is, as at every barrier.
  slice = 1,
  /// All of it: joiners, and one who was there before them.
  whole = 2,
  /// Nothing: joiners have come, and others are compared with them.
  nothing = 3,
};

TROUPE_INSPECT_ENUM(state_comparison, slice, nothing)

/// A worker's place in a new generation, and what all its members do with the step that was under way.
struct member_place {
  group_place place;
  /// A worker that has not committed this step holds its reduced gradient, and applies it. Any later step is computed
  /// again.
  step_id commit_point;
  /// The highest command that the barrier of `commit_point` agreed on.
  std::uint64_t commands_agreed = 0;
  /// How many evaluations have a result.
  std::uint64_t evaluations = 0;
  /// Set if members differ in that: this rank broadcasts the last result, and all take part.
  std::optional<rank_id> evaluation_source;
  /// The ranks that receive the run's state from the others before anything else.
  std::vector<rank_id> joiners;
  state_comparison comparison = state_comparison::slice;

  bool operator==(const member_place&) const = default;
};

TROUPE_INSPECT(member_place, place, commit_point, commands_agreed, evaluations, evaluation_source, joiners, comparison)

/// For a joiner: the others have completed the loop of the training function that it has reached. It goes on to the
/// next one, before which they found these results of evaluations.
struct loop_completed {
  std::vector<std::vector<double>> evaluations;

  bool operator==(const loop_completed&) const = default;
};

TROUPE_INSPECT(loop_completed, evaluations)

/// The run goes on without this worker: its process may end.
struct released {
  bool operator==(const released&) const = default;
};

TROUPE_INSPECT(released)

/// What a worker does next: it takes its place in the next generation; or, as a joiner, follows the members in a
/// staging group and reports again when it has reached the boundary that they name, or cannot; or skips a loop; or
/// leaves. Answers a `regroup_report`.
struct next_generation {
  std::variant<member_place, staging_place, loop_completed, released> what;

  bool operator==(const next_generation&) const = default;
};

TROUPE_INSPECT(next_generation, what)

/// Makes every pending and later operation of a generation's communicator fail with `reason`: a member is gone, or the
/// run is ending. The worker answers with a `regroup_report`, and hears which it is.
struct abort_training {
  run_id run;
  generation_id generation;
  error reason;

  bool operator==(const abort_training&) const = default;
};

TROUPE_INSPECT(abort_training, run, generation, reason)

/// One rank's contribution to an all-gather over the control plane, by which communicators find each other. Answered by
/// `exchange_result` when all ranks have sent theirs. Fails with `errc::stale_generation`.
struct exchange_request {
  run_id run;
  generation_id generation;
  /// Numbers the exchanges of a generation: 0, or that of a staging group.
  std::uint64_t sequence = 0;
  rank_id rank;
  std::string blob;
  /// How many ranks a staging group has; 0 for all ranks of the generation.
  std::uint32_t group_size = 0;

  bool operator==(const exchange_request&) const = default;
};

TROUPE_INSPECT(exchange_request, run, generation, sequence, rank, blob, group_size)

/// The blobs of all ranks, by rank.
struct exchange_result {
  generation_id generation;
  std::vector<std::string> blobs;

  bool operator==(const exchange_result&) const = default;
};

TROUPE_INSPECT(exchange_result, generation, blobs)

/// Begins a generation; exchanges and parts of checkpoints of older ones are failed with `errc::stale_generation`. Sent
/// when a member is lost, without a size, and again when it is known who is left.
struct generation_started {
  run_id run;
  generation_id generation;
  std::uint32_t world_size = 0;

  bool operator==(const generation_started&) const = default;
};

TROUPE_INSPECT(generation_started, run, generation, world_size)

} // namespace troupe
