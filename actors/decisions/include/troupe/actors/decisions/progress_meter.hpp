#pragma once

#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace troupe::actors {

/// Makes progress events out of rank 0's metrics: not more often than people can see, with the speed of the last
/// seconds. Time comes in as an argument.
class progress_meter {
 public:
  using clock = std::chrono::steady_clock;

  void begin(run_id run, clock::time_point start, std::uint64_t first_step) {
    progress_.run = std::move(run);
    start_ = mark_ = clock::time_point{start};
    marked_step_ = progress_.step = first_step;
  }

  void set_plan(const run_plan& plan, clock::time_point now) {
    progress_.steps = plan.steps;
    progress_.batch_samples = plan.batch_samples;
    mark_ = now;
  }

  /// Adds a report of rank 0; returns an event when one is due.
  std::optional<run_progress> add(const metrics_batch& batch, clock::time_point now) {
    for (const auto& row : batch.rows)
      for (const auto& [name, value] : row.values) {
        progress_.metrics[name] = value;
        progress_.metrics_from[name] = row.step.value;
      }
    // A report from within the first step of a resumed run comes before anything is applied.
    progress_.step = std::max(progress_.step, batch.applied.value);
    progress_.seconds_elapsed = std::chrono::duration<double>(now - start_).count();
    measure(now);
    if (now - sent_ < std::chrono::milliseconds{50} && progress_.step < progress_.steps)
      return std::nullopt;
    sent_ = now;
    return progress_;
  }

  [[nodiscard]] const run_progress& latest() const noexcept { return progress_; }

 private:
  void measure(clock::time_point now) {
    auto window = std::chrono::duration<double>(now - mark_).count();
    auto steps = progress_.step - marked_step_;
    if (window <= 0 || steps == 0)
      return;
    auto rate = static_cast<double>(steps) / window;
    progress_.samples_per_second = rate * static_cast<double>(progress_.batch_samples);
    if (progress_.steps > progress_.step)
      progress_.seconds_left = static_cast<double>(progress_.steps - progress_.step) / rate;
    else
      progress_.seconds_left = 0;
    if (window > 5) {
      mark_ = now;
      marked_step_ = progress_.step;
    }
  }

  run_progress progress_;
  clock::time_point start_;
  clock::time_point mark_;
  clock::time_point sent_;
  std::uint64_t marked_step_ = 0;
};

} // namespace troupe::actors
