#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/metrics.hpp>
#include <troupe/types.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The messages of workers to the driver, and their requests to exit.
namespace troupe {

/// A worker has joined and waits for `begin_training`. Sent once, and again whenever the driver has new handles.
struct worker_ready {
  run_id run;
  worker_id worker;
  std::uint32_t pid = 0;
  std::string host;
  std::string build_id;
  /// JSON text of the numerics fingerprint.
  std::string numerics;

  bool operator==(const worker_ready&) const = default;
};

TROUPE_INSPECT(worker_ready, run, worker, pid, host, build_id, numerics)

/// A worker's plan for the whole run. Sent before its first step. The plans of all workers, and that of the checkpoint
/// that the run resumes from, must be equal. Answered by `plan_accepted` once all workers have sent theirs; fails with
/// `errc::mismatch`, naming the differences.
struct run_plan {
  run_id run;
  generation_id generation;
  worker_id worker;
  std::uint64_t steps = 0;
  std::uint64_t batch_samples = 0;
  std::uint64_t data_samples = 0;
  std::string data_fingerprint;
  /// Names, dtypes and shapes of the tracked tensors, one per line.
  std::string tensors;
  /// The index of the loop in the training function, from 0.
  std::uint32_t loop = 0;
  /// The results of the evaluations since the previous loop. Workers that join later do not compute them again.
  std::vector<std::vector<double>> evaluations;
  /// The size of the tracked tensors, which determines how joiners receive them.
  std::uint64_t state_bytes = 0;

  bool operator==(const run_plan&) const = default;
};

TROUPE_INSPECT(run_plan, run, generation, worker, steps, batch_samples, data_samples, data_fingerprint, tensors, loop,
               evaluations, state_bytes)

/// All workers have the same plan, so training begins.
struct plan_accepted {
  generation_id generation;

  bool operator==(const plan_accepted&) const = default;
};

TROUPE_INSPECT(plan_accepted, generation)

/// One metrics report of one rank.
struct metric_row {
  step_id step;
  /// Microseconds of training in this run, including the time before it was resumed.
  std::uint64_t time_us = 0;
  /// Microseconds since 1970-01-01 UTC, by the clock of the worker's host.
  std::uint64_t wall_us = 0;
  metric_map values;

  bool operator==(const metric_row&) const = default;
};

TROUPE_INSPECT(metric_row, step, time_us, wall_us, values)

/// XXH3 of what a step reduced, and of the state after it. The gradient is cut into pieces that depend on the program
/// only, so digests of runs with different numbers of workers can be compared. Two ranks digest each piece, if there
/// are two: one of them may be lost before it reports.
struct step_digest {
  /// How many pieces there are; the sums of the metrics are the last.
  std::uint32_t pieces = 0;
  /// Of the pieces from `first` on; piece 0 follows the last.
  std::uint32_t first = 0;
  std::vector<std::uint64_t> digests;
  /// Of one slice of the tracked state, another in each step.
  std::uint64_t state = 0;
  /// JSON text with the names of pieces and slices. In the first row of a loop; empty in others.
  std::string names;

  bool operator==(const step_digest&) const = default;
};

TROUPE_INSPECT(step_digest, pieces, first, digests, state, names)

/// An entry of the debug ledger: the shards that a rank computed in a step.
struct ledger_row {
  step_id step;
  generation_id generation;
  shard_range shards;
  /// `digest_of_samples` of the shards' samples; 0 for no shards.
  std::uint64_t samples_digest = 0;
  step_digest digest = {};

  bool operator==(const ledger_row&) const = default;
};

TROUPE_INSPECT(ledger_row, step, generation, shards, samples_digest, digest)

/// How long a rank made no progress because a new group was formed.
struct pause_row {
  /// The first generation in which it made progress again.
  generation_id generation;
  /// The first step that it committed there.
  step_id step;
  /// Microseconds from the barrier before the pause to that step's.
  std::uint64_t pause_us = 0;

  bool operator==(const pause_row&) const = default;
};

TROUPE_INSPECT(pause_row, generation, step, pause_us)

/// Upper bounds, included, of the bins into which steps are sorted by their duration, in microseconds. Longer steps are
/// in one more bin.
inline constexpr std::array<std::uint64_t, 17> step_duration_bounds_us{
    250,     500,     1'000,     2'500,     5'000,     10'000,     25'000,     50'000,    100'000,
    250'000, 500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 30'000'000, 60'000'000};

/// Where the time of a rank's steps went. Tries of a step that came to nothing are left out.
struct times_row {
  rank_id rank;
  generation_id generation;
  step_id first;
  step_id last;
  /// How many of the steps from `first` to `last`: those that this rank was a member in.
  std::uint64_t steps = 0;
  /// In the body: data, contributions, application. Microseconds of all these steps.
  std::uint64_t compute_us = 0;
  /// From the last contribution to the reduced gradient.
  std::uint64_t wait_us = 0;
  /// Until all ranks had it.
  std::uint64_t barrier_us = 0;
  /// Between steps: training waits for copies of its state for checkpoints, and for checkpoints in flight.
  std::uint64_t checkpoint_us = 0;
  /// The payload that this rank has sent to its peers through the host's memory or network.
  std::uint64_t sent_bytes = 0;
  /// The process's resident memory at the end of the row.
  std::uint64_t resident_bytes = 0;
  /// How many of the steps took as long as each bin of `step_duration_bounds_us` says; empty if not counted.
  std::vector<std::uint32_t> durations = {};

  bool operator==(const times_row&) const = default;
};

TROUPE_INSPECT(times_row, rank, generation, first, last, steps, compute_us, wait_us, barrier_us, checkpoint_us,
               sent_bytes, resident_bytes, durations)

/// A rank's metric of a step that is NaN or infinite.
struct not_finite_row {
  step_id step;
  /// The shard that it is from; nothing if only the mean over all is known.
  std::optional<shard_id> shard;
  std::string metric;
  double value = 0;

  bool operator==(const not_finite_row&) const = default;
};

TROUPE_INSPECT(not_finite_row, step, shard, metric, value)

/// The metrics that a worker has collected since its last batch.
struct metrics_batch {
  run_id run;
  worker_id worker;
  rank_id rank;
  /// Counts this worker's batches, from 1. A repeated batch has the same number, and is processed once.
  std::uint64_t number = 0;
  /// The last step that this rank has applied.
  step_id applied;
  /// The number of reports dropped because the worker's buffer was full.
  std::uint64_t dropped = 0;
  std::vector<metric_row> rows;
  std::vector<ledger_row> ledger;
  std::vector<pause_row> pauses;
  /// The steps after which a due checkpoint was skipped, because the limit of checkpoints in flight was reached. From
  /// rank 0.
  std::vector<step_id> skipped;
  /// The first of each metric in a row of steps.
  std::vector<not_finite_row> not_finite;
  std::vector<times_row> times;

  bool operator==(const metrics_batch&) const = default;
};

TROUPE_INSPECT(metrics_batch, run, worker, rank, number, applied, dropped, rows, ledger, pauses, skipped, not_finite,
               times)

/// The training function has returned or thrown. The worker stays until it is released.
struct worker_finished {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// The last applied step.
  step_id step;
  /// The exception; code `none` if the function returned.
  error reason;
  /// Whether the function returned because a stop was requested.
  bool stopped = false;
  /// Whether it ended because its group was lost: only a restart from the latest checkpoint can continue the run.
  bool needs_restart = false;
  /// The digest of the tracked state; empty if the function threw or tracked nothing.
  std::string state_sha256;

  bool operator==(const worker_finished&) const = default;
};

TROUPE_INSPECT(worker_finished, run, generation, worker, step, reason, stopped, needs_restart, state_sha256)

/// Asks for permission to exit, because the worker's device does not release an aborted group. Answered by
/// `exit_granted` when it is this worker's turn. From a worker to the collectives actor.
struct exit_request {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// The hanging operation, for the log.
  std::string reason;

  bool operator==(const exit_request&) const = default;
};

TROUPE_INSPECT(exit_request, run, generation, worker, reason)

/// The worker may exit.
struct exit_granted {
  /// No other process has the run's state: the worker copies it out first.
  bool is_last_holder = false;

  bool operator==(const exit_granted&) const = default;
};

TROUPE_INSPECT(exit_granted, is_last_holder)

/// Withdraws an `exit_request`: the hanging call has returned, and the worker continues. From the worker to the
/// collectives actor.
struct exit_withdrawn {
  run_id run;
  worker_id worker;

  bool operator==(const exit_withdrawn&) const = default;
};

TROUPE_INSPECT(exit_withdrawn, run, worker)

/// A worker's process has ended. From the driver to the collectives actor.
struct worker_gone {
  run_id run;
  worker_id worker;
  /// The number of live members of the last generation. They have the state.
  std::uint32_t holders_left = 0;

  bool operator==(const worker_gone&) const = default;
};

TROUPE_INSPECT(worker_gone, run, worker, holders_left)

} // namespace troupe
