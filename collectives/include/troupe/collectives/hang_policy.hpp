#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <functional>

namespace troupe::collectives {

/// What is done when a device or NCCL does not let go of a group that was given up: kernels and copies may go on
/// writing, so that this process must not report, and must not stay. All are called from threads of the group's.
struct hang_policy {
  /// What the collectives actor answers who asks for leave to die.
  struct permit {
    /// Nobody else has the state: `copy_out` comes before the end.
    bool is_last_holder = false;
  };

  /// Returns once this process may end; others that hang, too, wait for it to be gone. An error counts as leave.
  std::function<expected<permit>()> request_exit;
  /// What hung has come back, and the process goes on: who waits for its end need not.
  std::function<void()> withdraw_exit;
  /// Takes the state off the device, on a stream of its own, to where it outlives the process. Where there is none, or
  /// it fails, and nobody else has the state, the run falls back to its last checkpoint.
  std::function<expected<void>()> copy_out;
  /// Ends the process; `why` is for its log. Default: SIGKILL to itself, which counts as a loss.
  std::function<void(const error& why)> end_process;

  /// The longest that `revoke` and `abort` of NCCL may take, each; then the work that stands on a stream; and then
  /// leave, and the copy.
  std::chrono::milliseconds abort_deadline = std::chrono::seconds{5};
  std::chrono::milliseconds settle_deadline = std::chrono::seconds{5};
  std::chrono::milliseconds leave_deadline = std::chrono::seconds{30};
  std::chrono::milliseconds copy_deadline = std::chrono::seconds{60};
};

} // namespace troupe::collectives
