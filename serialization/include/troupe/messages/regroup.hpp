#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/packed_texts.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/messages/transport.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// Membership: a worker's report when its group has ended, its place in the next group, and the exchanges over the
/// control plane with which the members of a group connect.
namespace troupe {

/// A worker's place in a generation, and the layout of the generation. Every worker gets one, so its size does not grow
/// with the number of workers. Shards are split evenly.
struct group_place {
  /// 0 for a joiner that has no place yet.
  generation_id generation;
  /// The attempt of the run, from 1. Each restart from a checkpoint begins the next attempt.
  std::uint32_t attempt = 1;
  /// For people: why this generation was formed. Empty for the first.
  std::string reason;
  rank_id rank;
  std::uint32_t world_size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;
  std::uint32_t node_rank = 0;
  transport_kind transport = transport_kind::self;
  /// On which nodes the ranks are, in their order. Ranks of one node can share memory.
  std::vector<node_ranks> nodes;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;
  /// The address at which other hosts reach it.
  std::string host_address;
  /// `HOST:PORT` at which the driver accepts streamed checkpoint parts; empty if it accepts none.
  std::string part_stream;

  bool operator==(const group_place&) const = default;
};

TROUPE_INSPECT(group_place, generation, attempt, reason, rank, world_size, local_rank, local_world_size, node_rank,
               transport, nodes, data_address, host_address, part_stream)

/// How far a worker with the run's state is.
struct worker_progress {
  /// The last step whose barrier it has committed: that step counts as applied.
  step_id committed;
  /// The highest command that the barrier of `committed` has agreed on.
  std::uint64_t commands_agreed = 0;
  /// How many evaluations it has finished; it holds the result of the last.
  std::uint64_t evaluations = 0;

  bool operator==(const worker_progress&) const = default;
};

TROUPE_INSPECT(worker_progress, committed, commands_agreed, evaluations)

/// Where a worker stands that reports.
namespace worker_position {

/// A joiner that has not received the state yet.
struct without_state {
  /// The number of the staging group that it was in last; 0 for none.
  std::uint64_t staging = 0;

  bool operator==(const without_state&) const = default;
};

TROUPE_INSPECT(without_state, staging)

/// A joiner that has followed the members to a boundary of theirs, and has their state.
struct caught_up {
  worker_progress progress;
  /// The number of its staging group.
  std::uint64_t staging = 0;

  bool operator==(const caught_up&) const = default;
};

TROUPE_INSPECT(caught_up, progress, staging)

/// Between two steps, where joiners can be let in.
struct between_steps {
  worker_progress progress;

  bool operator==(const between_steps&) const = default;
};

TROUPE_INSPECT(between_steps, progress)

/// In the step after `progress.committed`.
struct in_step {
  worker_progress progress;
  /// Whether it holds the reduced gradient of that step.
  bool holds_gradient = false;

  bool operator==(const in_step&) const = default;
};

TROUPE_INSPECT(in_step, progress, holds_gradient)

/// In no step, and at no boundary where joiners can be let in: it forms a group, compares plans, or saves.
struct elsewhere {
  worker_progress progress;

  bool operator==(const elsewhere&) const = default;
};

TROUPE_INSPECT(elsewhere, progress)

/// Its training function has thrown in the step after `progress.committed`, before the reduction, and will end.
struct thrown {
  worker_progress progress;

  bool operator==(const thrown&) const = default;
};

TROUPE_INSPECT(thrown, progress)

} // namespace worker_position

/// A worker's state once its group has ended and none of its threads accesses memory under that generation any more.
/// Sent by its training thread when a collective operation was aborted or lost a peer, and on a command. A joiner sends
/// it to ask for its first place, and once it has caught up. Answered by `next_generation` once all remaining workers
/// have reported; fails when the run is ending. A report that the training function has thrown is answered at once: by
/// `save_and_leave` if no other worker has the state, else with an error. Repeating it is harmless.
struct regroup_report {
  run_id run;
  /// The generation that has ended; 0 from a joiner that was in none.
  generation_id generation;
  worker_id worker;
  /// Counts this worker's reports, from 1. A repeated report has the same number, and gets the same answer.
  std::uint64_t number = 0;
  std::variant<worker_position::without_state, worker_position::caught_up, worker_position::between_steps,
               worker_position::in_step, worker_position::elsewhere, worker_position::thrown>
      position;
  /// The failure that this worker detected, or the exception; code `none` if the driver had reported it.
  error reason;
  /// The ranks of that generation that do not answer this worker over the data network.
  std::vector<rank_id> unreachable = {};

  bool operator==(const regroup_report&) const = default;

  template <class Position>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Position>(position);
  }
  /// Null if it has no state.
  [[nodiscard]] const worker_progress* progress() const noexcept {
    return std::visit(
        [](const auto& x) -> const worker_progress* {
          if constexpr (requires { x.progress; })
            return &x.progress;
          else
            return nullptr;
        },
        position);
  }
};

TROUPE_INSPECT(regroup_report, run, generation, worker, number, position, reason, unreachable)

/// Which part of the tracked state a rank compares with the others at the first barrier of its generation.
enum class state_comparison : std::uint8_t {
  /// The next slice in turn, as at every barrier.
  slice = 1,
  /// All of it: for joiners, and for one earlier member.
  whole = 2,
  /// Nothing: for the other members in a generation with joiners.
  nothing = 3,
};

TROUPE_INSPECT_ENUM(state_comparison, slice, nothing)

/// A worker's place in a new generation, and what all its members do with the interrupted step.
struct member_place {
  group_place place;
  /// A worker that has not committed this step holds its reduced gradient, and applies it. Any later step is computed
  /// again.
  step_id commit_point;
  /// The highest command that the barrier of `commit_point` agreed on.
  std::uint64_t commands_agreed = 0;
  /// The number of evaluations that have a result.
  std::uint64_t evaluations = 0;
  /// Set if some members lack the last result: this rank broadcasts it to all.
  std::optional<rank_id> evaluation_source;
  /// The ranks that receive the run's state from the others before anything else.
  std::vector<rank_id> joiners;
  state_comparison comparison = state_comparison::slice;

  bool operator==(const member_place&) const = default;
};

TROUPE_INSPECT(member_place, place, commit_point, commands_agreed, evaluations, evaluation_source, joiners, comparison)

/// For a joiner: the members have completed the loop of the training function that the joiner has reached. The joiner
/// continues with the next loop. The members' evaluations before that loop had these results.
struct loop_completed {
  std::vector<std::vector<double>> evaluations;

  bool operator==(const loop_completed&) const = default;
};

TROUPE_INSPECT(loop_completed, evaluations)

/// The run continues without this worker. Its process may end.
struct released {
  bool operator==(const released&) const = default;
};

TROUPE_INSPECT(released)

/// The run ends for this reason, or no other worker has the state and this one has failed for it. This worker saves the
/// whole state first, as the last checkpoint, and then fails with the same reason; or with another, if it could not
/// save.
struct save_and_leave {
  error reason;
  /// If the worker has not committed this step, it holds its reduced gradient, and applies it before it saves.
  step_id commit_point;

  bool operator==(const save_and_leave&) const = default;
};

TROUPE_INSPECT(save_and_leave, reason, commit_point)

/// What a worker does next. It takes its place in the next generation, or leaves. A joiner may also follow the members
/// in a staging group, and report again once it has caught up or failed; or skip a loop. Answers a `regroup_report`.
struct next_generation {
  std::variant<member_place, staging_place, loop_completed, released, save_and_leave> what;

  bool operator==(const next_generation&) const = default;
};

TROUPE_INSPECT(next_generation, what)

/// Makes every pending and later operation of a generation's communicator fail with `reason`: a member is lost, or the
/// run is ending. The worker then sends a `regroup_report`, whose answer says which.
struct abort_training {
  run_id run;
  generation_id generation;
  error reason;

  bool operator==(const abort_training&) const = default;
};

TROUPE_INSPECT(abort_training, run, generation, reason)

/// Where the numbers of device groups' exchanges begin.
inline constexpr auto first_device_exchange = std::uint64_t{1} << 63;

/// One rank's contribution to an all-gather over the control plane, with which communicators connect. Answered by
/// `exchange_result` once all ranks have sent theirs. Fails with `errc::stale_generation`.
struct exchange_request {
  run_id run;
  generation_id generation;
  /// 0 for the generation's own exchange; below `first_device_exchange` the number of a staging group; from there on,
  /// exchanges of device groups.
  std::uint64_t sequence = 0;
  rank_id rank;
  std::string blob;
  /// The number of ranks of a staging group; 0 for all ranks of the generation.
  std::uint32_t group_size = 0;

  bool operator==(const exchange_request&) const = default;
};

TROUPE_INSPECT(exchange_request, run, generation, sequence, rank, blob, group_size)

/// The blobs of all ranks, by rank. Each rank gets all of them, so they travel in one piece.
struct exchange_result {
  generation_id generation;
  std::vector<std::string> blobs;

  bool operator==(const exchange_result&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exchange_result& x) {
  auto pack = [&x] { return pack_texts(x.blobs); };
  auto unpack = [&x](const std::string& packed) { return unpack_texts(packed, x.blobs); };
  return f.object(x).fields(f.field("generation", x.generation), f.field("blobs", pack, unpack));
}

/// Begins a generation. Exchanges and checkpoint parts of older ones fail with `errc::stale_generation`. Sent when a
/// member is lost, without a size, and again when the next members are known.
struct generation_started {
  run_id run;
  generation_id generation;
  std::uint32_t world_size = 0;

  bool operator==(const generation_started&) const = default;
};

TROUPE_INSPECT(generation_started, run, generation, world_size)

} // namespace troupe
