#pragma once

#include <troupe/actors/decisions/goodput_meter.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/progress_meter.hpp>
#include <troupe/config/run.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/checkpoint.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/metrics.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// The history of earlier drivers, for the run's result: at most the last 256 failures and generations and the last
/// 1,024 workers.
struct run_history {
  /// Without the lines that their processes wrote last.
  std::vector<failure_record> failures;
  std::vector<generation_record> generations;
  std::vector<worker_info> workers;
  std::uint32_t restarts = 0;
  checkpoint_counts due_checkpoints;
  std::uint64_t resumed_from_step = 0;
  std::vector<program_span> programs;
  std::string loaded_from;

  bool operator==(const run_history&) const = default;
};

TROUPE_INSPECT(run_history, failures, generations, workers, restarts, due_checkpoints, resumed_from_step, programs,
               loaded_from)

/// Records a run so far, for its result. A plain class; time is an argument.
class run_record {
 public:
  using clock = std::chrono::steady_clock;

  run_record() = default;
  run_record(run_id run, const run_config& config, clock::time_point now);

  [[nodiscard]] const run_id& run() const noexcept { return result_.run; }
  [[nodiscard]] const run_result& result() const noexcept { return result_; }
  [[nodiscard]] clock::duration age(clock::time_point now) const { return now - started_; }

  /// The run's directory is claimed.
  void set_path(std::string path) { result_.path = std::move(path); }

  /// The state that the run begins with, at its start or after a restart: its step, the checkpoint of this run that
  /// holds it (empty if none does), and the metrics reported before it was taken, with the steps they are from.
  void begin_from(step_id step, std::string checkpoint, metric_map metrics, metric_steps metrics_from = {});

  /// The programs that have computed the steps so far, and the other run's checkpoint that they began with.
  void set_programs(std::vector<program_span> programs) { result_.programs = std::move(programs); }
  void set_loaded_from(std::string checkpoint) { result_.loaded_from = std::move(checkpoint); }

  /// How long the run had been training before this driver, in seconds.
  void set_earlier_time(double seconds) noexcept { earlier_time_ = std::chrono::duration<double>{seconds}; }
  /// How long it has been training in all: the time in which it had no driver does not count.
  [[nodiscard]] std::chrono::duration<double> run_time(clock::time_point now) const {
    return earlier_time_ + (now - started_);
  }

  /// The history that another driver needs to continue: `failures` are those of this driver.
  [[nodiscard]] run_history history(const std::vector<failure_record>& failures) const;
  /// Continues the history of another driver. Call it before `begin_from`.
  void go_on_from(run_history before);

  /// Ids below this one were given by another driver.
  void skip_workers(worker_id next);
  /// The id of the next worker that is started.
  [[nodiscard]] worker_id next_worker() const { return next_worker_; }
  void on_started(const worker_place& place, const std::string& host, const std::string& node);
  /// Another driver has started it, and may have known its pid.
  void on_inherited(const worker_place& place, const std::string& host, const std::string& node);
  void on_joined(const worker_ready& message);
  void set_rank(worker_id worker, rank_id rank) { info_of(worker).rank = rank; }
  [[nodiscard]] bool knows(worker_id worker) const noexcept { return worker < next_worker_; }
  /// Has nothing but its id if this driver has not heard of it.
  [[nodiscard]] worker_info operator[](worker_id worker) const;

  enum class begin : std::uint8_t { first, again };

  /// All workers of an attempt begin to train. Returns whether it is the first attempt that does.
  begin on_begin();
  void on_plan(const run_plan& plan, clock::time_point now) { meter_.set_plan(plan, now); }
  /// Adds a worker's reports. `generation`: the current one. Returns an event if one is due.
  std::optional<run_progress> on_metrics(const metrics_batch& batch, generation_id generation, clock::time_point now);
  /// The last progress; nothing before the first step.
  [[nodiscard]] std::optional<run_progress> latest_progress() const;
  void on_checkpoint(const checkpoint_outcome& outcome);
  /// Returns how often a checkpoint was skipped, this one included.
  std::uint64_t on_skipped_checkpoint() { return ++result_.due_checkpoints.skipped; }

  void add(generation_record record) { result_.generations.push_back(std::move(record)); }
  /// Where the run's time goes.
  [[nodiscard]] goodput_meter& goodput() noexcept { return goodput_; }
  [[nodiscard]] const goodput_meter& goodput() const noexcept { return goodput_; }
  /// The run restarts. `furthest`: the last step that any worker had applied.
  void on_restart(std::string why, step_id furthest, clock::time_point now);
  /// The generation with which a restarted run begins.
  [[nodiscard]] generation_record restarted_generation(generation_id generation, std::uint32_t attempt,
                                                       std::uint32_t workers) const;
  /// Why it restarted last; empty if it did not.
  [[nodiscard]] const std::string& restart_reason() const noexcept { return restart_reason_; }

  /// Hosts of different types make the result inexact for good.
  void note_exactness(bool exact) noexcept { result_.exact = result_.exact && exact; }
  void conclude(run_status status, error reason);
  /// The end state from the workers' last reports; `state_sha256` is empty if there are none or the run has failed.
  void set_final_state(const std::vector<failure_record>& failures, std::string state_sha256, step_id last_step);
  /// The result, with its duration.
  [[nodiscard]] run_result finish(clock::time_point now);

 private:
  [[nodiscard]] const worker_info* find(worker_id worker) const noexcept;
  /// Adds it if it is new.
  [[nodiscard]] worker_info& info_of(worker_id worker);
  void note_pause(generation_id generation, double seconds);

  /// Its workers are sorted by id, with gaps between the workers of successive drivers.
  run_result result_;
  worker_id next_worker_;
  clock::time_point started_;
  std::chrono::duration<double> earlier_time_{0};
  step_id first_step_;
  /// Failures recorded by earlier drivers.
  std::vector<failure_record> earlier_failures_;
  /// Of rank 0, before the checkpoint that the run resumed from.
  metric_map earlier_metrics_;
  metric_steps earlier_from_;
  progress_meter meter_;
  goodput_meter goodput_;
  /// How many attempts have begun to train.
  std::uint32_t begun_ = 0;
  std::string restart_reason_;
  /// Until the first step after a restart is applied.
  std::optional<clock::time_point> restart_began_;
  step_id furthest_;
  /// The last checkpoint, if it failed.
  std::optional<checkpoint_outcome> unsaved_;
};

} // namespace troupe::actors
