#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <functional>

namespace troupe::collectives {

/// The reaction to a device or NCCL that does not release an aborted group. Kernels and copies may then still write, so
/// this process must not report the loss and must end. The group calls these functions from its own threads.
struct hang_policy {
  /// The collectives actor's answer to a request to exit.
  struct permit {
    /// No other process has the state: call `copy_out` before exiting.
    bool is_last_holder = false;
  };

  /// Returns once this process may end. Other hanging processes wait until it has ended. An error counts as a permit.
  std::function<expected<permit>()> request_exit;
  /// The hanging call has returned and the process continues: others need not wait for its exit.
  std::function<void()> withdraw_exit;
  /// Copies the state off the device, on a stream of its own, to a place that outlives the process. If it is empty or
  /// fails and no other process has the state, the run falls back to its last checkpoint.
  std::function<expected<void>()> copy_out;
  /// Ends the process; `why` is for its log. Default: SIGKILL to itself, which counts as a loss.
  std::function<void(const error& why)> end_process;

  /// The limits of NCCL's `revoke` and `abort`, each; of pending work on a stream; of the exit permit; and of the copy.
  std::chrono::milliseconds abort_deadline = std::chrono::seconds{5};
  std::chrono::milliseconds drain_deadline = std::chrono::seconds{5};
  std::chrono::milliseconds exit_permit_deadline = std::chrono::seconds{30};
  std::chrono::milliseconds copy_deadline = std::chrono::seconds{60};
};

} // namespace troupe::collectives
