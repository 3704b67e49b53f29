#pragma once

#include <troupe/runtime/jobs.hpp>
#include <troupe/runtime/process.hpp>

#include <chrono>
#include <cstdint>
#include <variant>

namespace troupe::runtime {

/// Whether a job's driver is started again when it has ended. One that exits has come to an end of its own, and its
/// exit code says which; one that a signal ends, such as the kernel's out-of-memory killer's, has not. Pure.
class driver_restarts {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  struct settings {
    /// Before the first start again; twice as long before each further one in a row, up to the longest.
    std::chrono::milliseconds first_pause{500};
    std::chrono::milliseconds longest_pause{30'000};
    /// A driver that has lived for so long is not in a row with those before it.
    std::chrono::milliseconds healthy_after{60'000};
    /// How many may die in a row before the job fails.
    std::uint32_t most_in_row = 10;
  };

  struct start_again {
    time_point at;
  };

  driver_restarts() = default;
  explicit driver_restarts(settings how) : how_(how) {}

  void on_start(time_point now) { started_ = now; }

  /// `was_told`: the job was told to end. The end's time is left to the caller.
  [[nodiscard]] std::variant<job_end, start_again> on_exit(const exit_report& how, bool was_told, time_point now);

 private:
  settings how_;
  time_point started_{};
  std::uint32_t in_row_ = 0;
};

} // namespace troupe::runtime
