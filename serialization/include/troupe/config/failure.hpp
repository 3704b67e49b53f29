#pragma once

#include <chrono>
#include <cstdint>

namespace troupe {

/// The reaction to a worker that hangs while its process lives.
enum class hang_mode : std::uint8_t {
  /// Only report it.
  report = 1,
  /// Report it, and replace the worker after `failure_config::replace_after`.
  replace = 2,
};

/// The reaction to a loss, or another metric of a step, that is NaN or infinite.
enum class not_finite_mode : std::uint8_t {
  /// Warn, with step and rank.
  warn = 1,
  /// Warn, and end the run before the step is applied.
  end_run = 2,
};

/// The reaction to a worker that a debugger holds at a breakpoint.
enum class debugger_mode : std::uint8_t {
  /// The others wait for it, however long it takes.
  wait = 1,
  /// It is treated as a frozen one: it is killed and replaced as soon as others have the run's state.
  replace = 2,
};

/// How failures are detected, and how many a run tolerates.
struct failure_config {
  /// More failures in a row than this, with no new step between them, end the run; 0 ends it at the first. Losses that
  /// break the same group count once, such as a host with all its workers.
  std::uint32_t max_failures = 100;
  /// Starts a new worker for each lost one, if there is capacity.
  bool replace_lost = true;
  /// A worker or a node that is silent for this long is given up if workers elsewhere have the run's state; if not, the
  /// run waits for it. A worker that is given up is killed. At least 500 ms.
  std::chrono::milliseconds heartbeat_timeout{1'200};
  /// How long a run waits for silent nodes or workers that alone have its state. After that it starts again from its
  /// latest checkpoint.
  std::chrono::milliseconds unreachable_after{300'000};
  /// How long workers continue when their node has lost its connection to the driver. 0: they end at once.
  std::chrono::milliseconds driver_grace{60'000};
  debugger_mode debugger = debugger_mode::wait;
  not_finite_mode not_finite = not_finite_mode::warn;
  hang_mode hang = hang_mode::replace;
  /// A rank whose training thread makes no progress for this long is reported. `train_context::heartbeat` counts as
  /// progress, also before the first loop.
  std::chrono::milliseconds report_after{30'000};
  std::chrono::milliseconds replace_after{600'000};
  /// A tracked state larger than this is transferred to a joiner while the others keep training; the joiner then
  /// applies what they have reduced meanwhile. For a smaller state the others wait.
  std::uint64_t background_transfer_above_bytes = std::uint64_t{16} << 20;
};

} // namespace troupe
