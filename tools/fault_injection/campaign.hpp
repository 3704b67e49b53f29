#pragma once

#include "scene.hpp"
#include "schedule.hpp"
#include "verdict.hpp"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A signal asks this program to end.
struct interrupted {
  int signal;
};

/// The signal that has come, or 0. Set by `main`'s handler.
extern volatile std::sig_atomic_t signal_that_came;

/// Throws `interrupted` once a signal has come.
void heed_signals();

struct campaign_options {
  std::uint64_t seed = 1;
  std::chrono::milliseconds mean_interval{1000};
  std::vector<weighted_kind> kinds;
  /// How many faults; 0: as many as fall into `duration`.
  std::size_t faults = 24;
  std::chrono::milliseconds duration{0};
  /// Lets the last living worker be hit, too.
  bool allow_all = false;
  /// The run's last step, if the program has one; otherwise it is asked to stop when all faults are done.
  std::optional<std::uint64_t> last_step;
  /// Without any progress for so long, the run is hung.
  std::chrono::milliseconds hung_after{60'000};
};

struct campaign_report {
  std::vector<injected_fault> faults;
  /// From a fault to the first step of the generation after it, as seen from outside; only of faults after which there
  /// was one, before the next fault.
  std::vector<double> seconds_to_heal;
  /// The run made no progress any more; what everybody said when asked why.
  std::optional<std::string> hung;
  testing::exit_status driver;
};

/// Disturbs the run until it has ended, and prints a line for each fault.
[[nodiscard]] campaign_report disturb(scene& run, const campaign_options& options);

} // namespace troupe::chaos
