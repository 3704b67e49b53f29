#pragma once

#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <string>
#include <vector>

namespace troupe::runtime {

/// What the training side of a worker asks of the run's actors. Calls block; each comes from one thread at a time.
/// Implemented over CAF in one file; tests play it.
class control_link {
 public:
  virtual ~control_link() = default;

  /// An all-gather over the control plane. From the training thread.
  [[nodiscard]] virtual expected<exchange_result> exchange(const exchange_request& message) = 0;

  /// Returns once all workers have the same plan. From the training thread.
  [[nodiscard]] virtual expected<plan_accepted> agree(const run_plan& plan) = 0;

  /// Returns once the checkpoint is durable or given up. From the training thread.
  [[nodiscard]] virtual expected<checkpoint_outcome> deliver(const checkpoint_part& part) = 0;

  /// Returns once the driver has taken them in: that is the back pressure. From the metrics thread.
  [[nodiscard]] virtual expected<void> push(const metrics_batch& batch) = 0;

  /// Tells the end of the training function. From the training thread.
  virtual void finish(const worker_finished& message) = 0;
};

} // namespace troupe::runtime
