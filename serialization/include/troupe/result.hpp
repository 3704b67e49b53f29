#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/metrics.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The outcome of a run: the result of `fit()`, the events for subscribers, and the content of `result.json`.
namespace troupe {

/// How a run ended.
enum class run_status : std::uint8_t {
  /// All steps are done.
  completed = 1,
  /// Stopped on request before its last step; a checkpoint holds the state.
  stopped = 2,
  failed = 3,
};

TROUPE_INSPECT_ENUM(run_status, completed, failed)

/// "completed", "stopped", "failed".
[[nodiscard]] std::string to_string(run_status status);

/// One worker of a run.
struct worker_info {
  worker_id worker;
  rank_id rank;
  std::string host;
  /// The node's address; "embedded" for the driver's own.
  std::string node;
  std::uint32_t pid = 0;

  bool operator==(const worker_info&) const = default;
};

TROUPE_INSPECT(worker_info, worker, rank, host, node, pid)

/// One failure during a run.
struct failure_record {
  worker_id worker;
  /// Its process id; 0 if not known.
  std::uint32_t pid = 0;
  rank_id rank;
  /// The latest generation at the time of the failure.
  generation_id generation;
  /// The step that was under way: the one after the last that this worker had applied.
  step_id step;
  std::string host;
  error reason;
  /// Caused by an earlier failure.
  bool consequence = false;
  /// The last lines that the worker process wrote.
  std::vector<std::string> last_lines;

  bool operator==(const failure_record&) const = default;
};

TROUPE_INSPECT(failure_record, worker, pid, rank, generation, step, host, reason, consequence, last_lines)

/// A group of workers that trained together: why it formed, and what that cost. Also sent as an event when the group
/// forms.
struct generation_record {
  run_id run;
  generation_id generation;
  /// The run's start to which it belongs, from 1; more than 1 after a restart from a checkpoint.
  std::uint32_t attempt = 1;
  std::uint32_t workers = 0;
  /// Every step up to this one had been applied.
  step_id commit_point;
  /// How many steps that some workers had begun were computed again: 0 or 1; after a restart, all since the checkpoint.
  std::uint64_t steps_redone = 0;
  /// Whether the previous generation ended during a step.
  bool interrupted_step = false;
  /// The longest time a rank waited between the last step before the change and the first after it; 0 while unknown.
  double pause_seconds = 0;
  std::string reason;
  /// By rank. Set in the event only, not in the result.
  std::vector<worker_info> members;

  bool operator==(const generation_record&) const = default;
};

TROUPE_INSPECT(generation_record, run, generation, attempt, workers, commit_point, steps_redone, interrupted_step,
               pause_seconds, reason, members)

/// Counts of the due checkpoints by outcome. A checkpoint that a regroup interrupted is taken again, so it is not
/// counted.
struct checkpoint_counts {
  /// Durable.
  std::uint64_t taken = 0;
  /// Skipped because `checkpoint_config::max_in_flight` were still being written.
  std::uint64_t skipped = 0;
  /// Failed, for example on a full or broken device. Older checkpoints remain.
  std::uint64_t failed = 0;

  bool operator==(const checkpoint_counts&) const = default;
};

TROUPE_INSPECT(checkpoint_counts, taken, skipped, failed)

/// A checkpoint in the run's directory.
struct kept_checkpoint {
  step_id step;
  std::string path;
  /// Rank 0's last report before it was taken.
  metric_map metrics;
  /// Its value of `checkpoint_config::score_attribute`; nothing if it has none.
  std::optional<double> score;

  bool operator==(const kept_checkpoint&) const = default;
};

TROUPE_INSPECT(kept_checkpoint, step, path, metrics, score)

/// What a run's mirror has at the run's end.
struct mirror_summary {
  /// The run's place there; empty if the run has no mirror.
  std::string place;
  /// The steps of its complete checkpoints, oldest first.
  std::vector<std::uint64_t> checkpoints;
  /// Checkpoints that were not copied because a later one came first.
  std::uint64_t superseded = 0;
  std::uint64_t failed_attempts = 0;
  /// Code `none` if it has the run's latest checkpoint and files; otherwise what it lacks, and why.
  error reason;

  bool operator==(const mirror_summary&) const = default;
};

TROUPE_INSPECT(mirror_summary, place, checkpoints, superseded, failed_attempts, reason)

/// Steps that one program has computed, with one configuration and the same libraries.
struct program_span {
  /// Both included.
  step_id first_step;
  step_id last_step;
  std::string build_id;
  /// SHA-256 of the configuration's JSON text.
  std::string configuration_digest;
  /// A JSON object: library -> version, of those that the numerics fingerprint covers.
  std::string libraries;

  bool operator==(const program_span&) const = default;
};

TROUPE_INSPECT(program_span, first_step, last_step, build_id, configuration_digest, libraries)

/// The exit code of a program whose run was stopped by `run_config::time_limit`: start it again to go on (EX_TEMPFAIL
/// of sysexits.h).
inline constexpr int exit_out_of_time = 75;

/// Where the time went in which a run did not get ahead, in seconds.
struct lost_time {
  /// From `fit()` to the first applied step, without `capacity`.
  double start_up = 0;
  /// Waits for nodes or CPUs that its workers need.
  double capacity = 0;
  /// A group of workers was formed: members were lost, left or joined.
  double regroup = 0;
  /// All workers were lost: from then to the first step after the restart, without `capacity`.
  double restart = 0;
  /// Steps that were computed again after a restart.
  double redone = 0;
  /// A user had paused it.
  double paused = 0;
  /// Training waited for copies of its state for checkpoints, or for a checkpoint in flight.
  double checkpoint = 0;
  /// From the decision that the run ends to its end.
  double ending = 0;
  /// The rest: evaluations and code between steps, waits for what cannot be reached.
  double other = 0;

  bool operator==(const lost_time&) const = default;
};

TROUPE_INSPECT(lost_time, start_up, capacity, regroup, restart, redone, paused, checkpoint, ending, other)

/// Calls `visit` with the name and the seconds of each cause.
template <class Visitor>
void for_each_cause(const lost_time& lost, Visitor visit) {
  visit("start_up", lost.start_up);
  visit("capacity", lost.capacity);
  visit("regroup", lost.regroup);
  visit("restart", lost.restart);
  visit("redone", lost.redone);
  visit("paused", lost.paused);
  visit("checkpoint", lost.checkpoint);
  visit("ending", lost.ending);
  visit("other", lost.other);
}

/// How much of a driver's time its run got ahead: the time of the steps that count, over the time of the run.
struct run_goodput {
  /// Since `fit()`, in this driver's process.
  double seconds = 0;
  /// Of the steps that count, each once: computing, waiting for other ranks, and the barrier.
  double productive_seconds = 0;
  /// How many that are.
  std::uint64_t steps = 0;
  std::uint64_t steps_redone = 0;
  lost_time lost;

  /// From 0 to 1; 0 before the first step.
  [[nodiscard]] double ratio() const noexcept { return seconds > 0 ? productive_seconds / seconds : 0; }
  bool operator==(const run_goodput&) const = default;
};

TROUPE_INSPECT(run_goodput, seconds, productive_seconds, steps, steps_redone, lost)

/// The result of `fit()`. Also written as `result.json` into the run's directory.
struct run_result {
  run_id run;
  std::string name;
  run_status status = run_status::failed;
  /// The last step that was applied, counted over the whole life of the run.
  std::uint64_t steps = 0;
  /// The last value of each metric that rank 0 reported, in this process or before the checkpoint it resumed from.
  metric_map metrics;
  /// The step that each of these values is from.
  metric_steps metrics_from;
  /// Identity of the final tracked state: 64 hexadecimal digits; empty if no final state exists or nothing is tracked.
  std::string state_sha256;
  /// Directory of the latest checkpoint; empty for none.
  std::string latest_checkpoint;
  /// The checkpoint with the best score, also if an earlier process of the run took it.
  std::optional<kept_checkpoint> best_checkpoint;
  /// The checkpoints in the run's directory, oldest first.
  std::vector<kept_checkpoint> checkpoints;
  checkpoint_counts due_checkpoints;
  /// The run's directory.
  std::string path;
  /// Code `none` unless the run failed, was stopped immediately or before its first step (`stopped`), or was stopped by
  /// `run_config::time_limit` (`timed_out`).
  error reason;
  std::vector<failure_record> failures;
  /// All generations after the first, in order.
  std::vector<generation_record> generations;
  /// How often the run restarted, from a checkpoint or from the beginning, because no worker was left.
  std::uint32_t restarts = 0;
  /// All worker processes of the run, ordered by `worker`, each with its last rank.
  std::vector<worker_info> workers;
  /// False if hosts of different types took part, or the transport summed the gradients.
  bool exact = true;
  /// The step of the checkpoint it resumed from; 0 for a fresh start.
  std::uint64_t resumed_from_step = 0;
  /// From `fit()` to the first applied step, in seconds; 0 if no step was applied.
  double seconds_to_first_step = 0;
  double seconds_total = 0;
  /// The programs that have computed the steps, oldest first. More than one if the run continued with
  /// `run_config::allow_changed`.
  std::vector<program_span> programs;
  /// The checkpoint of another run that this one began with (`load_checkpoint`); empty for none.
  std::string loaded_from;
  mirror_summary mirror;
  /// Of this driver's process. Zero for a custom loop, whose steps Troupe does not see.
  run_goodput goodput;

  /// Marks the run as failed with `why`, unless it has failed already.
  void fail(error why) {
    if (status == run_status::failed)
      return;
    status = run_status::failed;
    reason = std::move(why);
  }

  /// Whether the run was stopped because its time was over: the same run can go on.
  [[nodiscard]] bool is_out_of_time() const noexcept {
    return status == run_status::stopped && reason.code == errc::timed_out;
  }
  /// 0 when completed or stopped as asked, 1 when failed, `exit_out_of_time` when stopped by `run_config::time_limit`.
  [[nodiscard]] int exit_code() const noexcept {
    return status == run_status::failed ? 1 : is_out_of_time() ? exit_out_of_time : 0;
  }

  bool operator==(const run_result&) const = default;
};

TROUPE_INSPECT(run_result, run, name, status, steps, metrics, metrics_from, state_sha256, latest_checkpoint,
               best_checkpoint, checkpoints, due_checkpoints, path, reason, failures, generations, restarts, workers,
               exact, resumed_from_step, seconds_to_first_step, seconds_total, programs, loaded_from, mirror, goodput)

/// The text of its JSON object, as in `result.json`.
/// Times are in seconds.
[[nodiscard]] std::string to_json(const run_goodput& goodput);

/// The text of `result.json`.
[[nodiscard]] std::string to_json(const run_result& result);

/// All workers have joined and enter the training function.
struct run_started {
  run_id run;
  std::string name;
  std::string path;
  std::vector<worker_info> workers;
  std::uint64_t resumed_from_step = 0;

  bool operator==(const run_started&) const = default;
};

TROUPE_INSPECT(run_started, run, name, path, workers, resumed_from_step)

/// Progress of the run. Sent at most about twenty times a second, and once at the end.
struct run_progress {
  run_id run;
  /// The last step that rank 0 has applied, of `steps`.
  std::uint64_t step = 0;
  std::uint64_t steps = 0;
  std::uint64_t batch_samples = 0;
  /// The last metrics of rank 0, and the step that each value is from: it may be one after `step`.
  metric_map metrics;
  metric_steps metrics_from;
  double samples_per_second = 0;
  double seconds_elapsed = 0;
  double seconds_left = 0;

  bool operator==(const run_progress&) const = default;
};

TROUPE_INSPECT(run_progress, run, step, steps, batch_samples, metrics, metrics_from, samples_per_second,
               seconds_elapsed, seconds_left)

/// A checkpoint is durable.
struct checkpoint_saved {
  run_id run;
  step_id step;
  std::string path;
  std::uint64_t size_bytes = 0;
  /// From the arrival of its first part until it was durable.
  double seconds = 0;

  bool operator==(const checkpoint_saved&) const = default;
};

TROUPE_INSPECT(checkpoint_saved, run, step, path, size_bytes, seconds)

/// A checkpoint was skipped: `checkpoint_config::max_in_flight` are still being written.
struct checkpoint_skipped {
  run_id run;
  step_id step;

  bool operator==(const checkpoint_skipped&) const = default;
};

TROUPE_INSPECT(checkpoint_skipped, run, step)

/// A checkpoint failed. Training continues, and older checkpoints remain.
struct checkpoint_failed {
  run_id run;
  step_id step;
  error reason;

  bool operator==(const checkpoint_failed&) const = default;
};

TROUPE_INSPECT(checkpoint_failed, run, step, reason)

/// Information for people: a phase, a warning, the first sign of a failure.
struct run_notice {
  run_id run;
  bool warning = false;
  std::string text;

  bool operator==(const run_notice&) const = default;
};

TROUPE_INSPECT(run_notice, run, warning, text)

} // namespace troupe
