#pragma once

#include <troupe/actors/run_monitor.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/metrics.hpp>
#include <troupe/result.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace troupe::runtime {

/// What a run has done so far, in numbers.
struct run_figures {
  /// Of one rank, over all processes that have had it.
  struct rank_figures {
    double compute_seconds = 0;
    double wait_seconds = 0;
    double barrier_seconds = 0;
    double checkpoint_seconds = 0;
    std::uint64_t sent_bytes = 0;
    /// Of its present process; 0 if there is none, or it has not told.
    std::uint64_t resident_bytes = 0;
  };

  struct checkpoint_figures {
    std::uint64_t saved = 0;
    std::uint64_t skipped = 0;
    std::uint64_t failed = 0;
    std::uint64_t saved_bytes = 0;
    double saved_seconds = 0;
    std::uint64_t last_step = 0;
  };

  std::string run;
  std::string name;
  /// The last step that rank 0 has applied, of `planned_steps`.
  std::uint64_t step = 0;
  std::uint64_t planned_steps = 0;
  std::uint64_t batch_samples = 0;
  double samples_per_second = 0;
  /// Steps as they were applied: after a restart some are counted again.
  std::uint64_t applied_steps = 0;
  /// Rank 0's last value of each metric, of at most `most_metrics`.
  metric_map metrics;
  std::array<std::uint64_t, step_duration_bounds_us.size() + 1> step_durations{};
  double step_seconds = 0;
  std::map<std::uint32_t, rank_figures> ranks;
  checkpoint_figures checkpoints;
  /// By the names of their errors, and whether they are consequences of others.
  std::map<std::pair<std::string, bool>, std::uint64_t> failures;
  std::uint64_t pauses = 0;
  double pause_seconds = 0;
  std::uint64_t warnings = 0;
  std::uint64_t dropped_reports = 0;
  actors::run_pulse pulse;

  static constexpr std::size_t most_metrics = 256;
};

/// Adds up a run's figures from what the trainer passes on. A plain class.
class run_metrics {
 public:
  explicit run_metrics(std::string name) { figures_.name = std::move(name); }

  void on(const actors::run_event& event);
  void on(const metrics_batch& batch);
  void on(const actors::run_pulse& pulse) { figures_.pulse = pulse; }

  [[nodiscard]] const run_figures& figures() const noexcept { return figures_; }

 private:
  void add(const run_started& x);
  void add(const run_progress& x);
  void add(const checkpoint_saved& x);
  void add(const checkpoint_skipped& x);
  void add(const checkpoint_failed& x);
  void add(const generation_record& x);
  void add(const run_notice& x);
  void add(const failure_record& x);
  void add(const times_row& row);
  void add(const pause_row& row);

  run_figures figures_;
  std::uint32_t attempt_ = 1;
  /// The last pause, of which other ranks may tell, too.
  generation_id paused_;
  double longest_pause_ = 0;
};

/// The page of a Prometheus endpoint.
[[nodiscard]] std::string to_prometheus(const run_figures& figures);

} // namespace troupe::runtime
