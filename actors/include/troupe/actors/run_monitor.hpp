#pragma once

#include <troupe/actors/decisions/goodput_meter.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// What happens to a run: what its observers get, and its failures.
using run_event = std::variant<run_started, run_progress, checkpoint_saved, checkpoint_skipped, checkpoint_failed,
                               generation_record, run_notice, failure_record>;

/// How a run stands. Told several times a second, from `fit()` on.
struct run_pulse {
  time_use activity = time_use::starting;
  generation_id generation;
  std::uint32_t attempt = 1;
  /// The members of the generation.
  std::uint32_t workers = 0;
  run_goodput goodput;
};

/// Passes on to other systems what happens to a run. Called in the trainer's thread, so that nothing of it waits.
class run_monitor {
 public:
  run_monitor() = default;
  run_monitor(const run_monitor&) = delete;
  run_monitor& operator=(const run_monitor&) = delete;
  virtual ~run_monitor() = default;

  virtual void on(const run_event& event) = 0;
  virtual void on(const metrics_batch& batch) = 0;
  virtual void on(const run_pulse& pulse) = 0;
};

/// Opens what a run's configuration asks for; null if that is nothing. The monitor calls `tell` from any thread, until
/// its destructor returns. Fails if something cannot be had, such as a port that is in use.
using monitor_factory = std::function<expected<std::unique_ptr<run_monitor>>(const trainer_config& config,
                                                                             std::function<void(run_notice)> tell)>;

} // namespace troupe::actors
