#pragma once

#include <troupe/error.hpp>
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

template <class Inspector>
bool inspect(Inspector& f, worker_ready& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("pid", x.pid),
                            f.field("host", x.host), f.field("build_id", x.build_id), f.field("numerics", x.numerics));
}

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

template <class Inspector>
bool inspect(Inspector& f, run_plan& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("steps", x.steps), f.field("batch_samples", x.batch_samples),
                            f.field("data_samples", x.data_samples), f.field("data_fingerprint", x.data_fingerprint),
                            f.field("tensors", x.tensors), f.field("loop", x.loop),
                            f.field("evaluations", x.evaluations), f.field("state_bytes", x.state_bytes));
}

/// All workers have the same plan: begin.
struct plan_accepted {
  generation_id generation;

  bool operator==(const plan_accepted&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, plan_accepted& x) {
  return f.object(x).fields(f.field("generation", x.generation));
}

/// One report of one rank.
struct metric_row {
  step_id step;
  /// Since the start of the worker's training function, in microseconds.
  std::uint64_t time_us = 0;
  metric_map values;

  bool operator==(const metric_row&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, metric_row& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("time_us", x.time_us), f.field("values", x.values));
}

/// Which shards a rank computed in a step: the debug ledger's entry.
struct ledger_row {
  step_id step;
  generation_id generation;
  shard_range shards;
  /// `digest_of_samples` of what the training function was given in them; 0 for no shards.
  std::uint64_t samples_digest = 0;

  bool operator==(const ledger_row&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, ledger_row& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("generation", x.generation), f.field("shards", x.shards),
                            f.field("samples_digest", x.samples_digest));
}

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

template <class Inspector>
bool inspect(Inspector& f, pause_row& x) {
  return f.object(x).fields(f.field("generation", x.generation), f.field("step", x.step),
                            f.field("pause_us", x.pause_us));
}

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

template <class Inspector>
bool inspect(Inspector& f, metrics_batch& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("rank", x.rank),
                            f.field("applied", x.applied), f.field("dropped", x.dropped), f.field("rows", x.rows),
                            f.field("ledger", x.ledger), f.field("pauses", x.pauses), f.field("skipped", x.skipped));
}

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

template <class Inspector>
bool inspect(Inspector& f, worker_finished& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("step", x.step), f.field("reason", x.reason), f.field("stopped", x.stopped),
                            f.field("needs_restart", x.needs_restart), f.field("state_sha256", x.state_sha256));
}

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

template <class Inspector>
bool inspect(Inspector& f, exit_request& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("reason", x.reason));
}

/// The worker may end itself.
struct exit_granted {
  /// Nobody else has the state of the run: it is to be copied out first.
  bool is_last_holder = false;

  bool operator==(const exit_granted&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exit_granted& x) {
  return f.object(x).fields(f.field("is_last_holder", x.is_last_holder));
}

/// A worker that has asked for leave goes on after all: what hung has come back. From the worker to the collectives
/// actor.
struct exit_withdrawn {
  run_id run;
  worker_id worker;

  bool operator==(const exit_withdrawn&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exit_withdrawn& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker));
}

/// A worker's process has ended. From the driver to the collectives actor.
struct worker_gone {
  run_id run;
  worker_id worker;
  /// Members of the last generation that live: they have the state.
  std::uint32_t holders_left = 0;

  bool operator==(const worker_gone&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_gone& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker),
                            f.field("holders_left", x.holders_left));
}

} // namespace troupe
