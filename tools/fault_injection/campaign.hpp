#pragma once

#include "pauses.hpp"
#include "scene.hpp"
#include "schedule.hpp"
#include "verdict.hpp"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// Thrown when a signal has asked this program to end.
struct interrupted {
  int signal;
};

/// The signal that has arrived, or 0. Set by `main`'s handler.
extern volatile std::sig_atomic_t received_signal;

/// Throws `interrupted` if a signal has arrived.
void check_signals();

struct campaign_options {
  std::uint64_t seed = 1;
  std::chrono::milliseconds mean_interval{1000};
  std::vector<weighted_kind> kinds;
  /// The number of faults; 0 means as many as fall into `duration`.
  std::size_t faults = 24;
  std::chrono::milliseconds duration{0};
  /// Whether the last living worker may be hit.
  bool allow_all = false;
  /// The run's last step, if it has one. Otherwise the run is asked to stop after all faults.
  std::optional<std::uint64_t> last_step;
  /// The run counts as hung after this time without progress.
  std::chrono::milliseconds hung_after{60'000};
};

/// The memory of processes of one kind, over the whole campaign.
struct memory_range {
  std::uint64_t least_bytes = 0;
  std::uint64_t most_bytes = 0;
  std::uint64_t last_bytes = 0;
  /// When it was the most, in seconds since the first fault was planned.
  double most_at = 0;

  /// 0 bytes are no measurement.
  void add(std::uint64_t bytes, double seconds);
};

struct campaign_report {
  std::vector<injected_fault> faults;
  /// When something was frozen, cut off, full, busy or gone.
  std::vector<time_span> lasting;
  memory_range driver_memory;
  memory_range node_memory;
  /// From a fault to the first step of the next generation, measured from outside. Only for faults that were followed
  /// by a new generation before the next fault.
  std::vector<double> seconds_to_heal;
  /// If the run was hung: the answers of all processes when asked for their state.
  std::optional<std::string> hung;
  testing::exit_status driver;
};

/// Injects faults until the run ends, and prints a line for each.
[[nodiscard]] campaign_report disturb(scene& run, const campaign_options& options);

} // namespace troupe::chaos
