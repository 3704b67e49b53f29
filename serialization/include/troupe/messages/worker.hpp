#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/metrics.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// What workers tell the driver, and the permits by which they end themselves.
namespace troupe {

/// A worker has joined and waits for `begin_training`. Sent once.
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

/// What a worker is about to do for the whole run, sent before its first step. All workers must say the same, and the
/// same as the checkpoint that is resumed from. Answered by `plan_accepted` when all have said it; fails with
/// `errc::mismatch`, which names the differences.
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
  /// Which of the training function's loops this is, from 0.
  std::uint32_t loop = 0;
  /// The results of the evaluations since the loop before: who joins later computes none of them.
  std::vector<std::vector<double>> evaluations;
  /// The size of the tracked tensors, which decides how joiners get them.
  std::uint64_t state_bytes = 0;

  bool operator==(const run_plan&) const = default;
};

TROUPE_INSPECT(run_plan, run, generation, worker, steps, batch_samples, data_samples, data_fingerprint, tensors, loop,
               evaluations, state_bytes)

/// All workers have the same plan: begin.
struct plan_accepted {
  generation_id generation;

  bool operator==(const plan_accepted&) const = default;
};

TROUPE_INSPECT(plan_accepted, generation)

/// One report of one rank.
struct metric_row {
  step_id step;
  /// Since the start of the worker's training function, in microseconds.
  std::uint64_t time_us = 0;
  metric_map values;

  bool operator==(const metric_row&) const = default;
};

TROUPE_INSPECT(metric_row, step, time_us, values)

/// Which shards a rank computed in a step: the debug ledger's entry.
struct ledger_row {
  step_id step;
  generation_id generation;
  shard_range shards;
  /// `digest_of_samples` of what the training function was given in them; 0 for no shards.
  std::uint64_t samples_digest = 0;

  bool operator==(const ledger_row&) const = default;
};

TROUPE_INSPECT(ledger_row, step, generation, shards, samples_digest)

/// How long a rank did not get on because its group was formed anew.
struct pause_row {
  /// The first generation in which it got on again.
  generation_id generation;
  /// The first step that it committed there.
  step_id step;
  /// From the barrier before to that step's, in microseconds.
  std::uint64_t pause_us = 0;

  bool operator==(const pause_row&) const = default;
};

TROUPE_INSPECT(pause_row, generation, step, pause_us)

/// What has gathered at a worker since its last batch: pushed, never answered.
struct metrics_batch {
  run_id run;
  worker_id worker;
  rank_id rank;
  /// The last step that this rank has applied.
  step_id applied;
  /// Reports that were given up because the worker's buffer was full.
  std::uint64_t dropped = 0;
  std::vector<metric_row> rows;
  std::vector<ledger_row> ledger;
  std::vector<pause_row> pauses;
  /// The steps after which a due checkpoint was left out, because as many as may be were in flight. From rank 0.
  std::vector<step_id> skipped;

  bool operator==(const metrics_batch&) const = default;
};

TROUPE_INSPECT(metrics_batch, run, worker, rank, applied, dropped, rows, ledger, pauses, skipped)

/// The training function has returned, or thrown. The worker stays until it is released.
struct worker_finished {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// The last step that was applied.
  step_id step;
  /// Empty code: it returned.
  error reason;
  /// Whether the function returned because a stop was requested.
  bool stopped = false;
  /// Whether it ended because its group was lost, and can only begin again from the latest checkpoint.
  bool needs_restart = false;
  /// Identity of the tracked state; empty when the function threw or tracked nothing.
  std::string state_sha256;

  bool operator==(const worker_finished&) const = default;
};

TROUPE_INSPECT(worker_finished, run, generation, worker, step, reason, stopped, needs_restart, state_sha256)

/// A worker's device does not let go of a group that was given up, so that the process has to end: it asks for leave.
/// Answered by `exit_granted`, when it is its turn. From a worker to the collectives actor.
struct exit_request {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// What hangs, for the log.
  std::string reason;

  bool operator==(const exit_request&) const = default;
};

TROUPE_INSPECT(exit_request, run, generation, worker, reason)

/// The worker may end itself.
struct exit_granted {
  /// Nobody else has the state of the run: it is to be copied out first.
  bool is_last_holder = false;

  bool operator==(const exit_granted&) const = default;
};

TROUPE_INSPECT(exit_granted, is_last_holder)

/// A worker that has asked for leave goes on after all: what hung has come back. From the worker to the collectives
/// actor.
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
  /// Members of the last generation that live: they have the state.
  std::uint32_t holders_left = 0;

  bool operator==(const worker_gone&) const = default;
};

TROUPE_INSPECT(worker_gone, run, worker, holders_left)

} // namespace troupe
