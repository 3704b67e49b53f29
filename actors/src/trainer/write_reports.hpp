#pragma once

#include "trainer/severity.hpp"

#include <troupe/error.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace troupe::actors {

/// Which of a run's files cannot be written, for users: they hear when it begins and when it is over, not of every
/// line. Used from one thread.
class write_reports {
 public:
  using teller = std::function<void(severity, std::string)>;

  enum class kind : std::uint8_t { metrics, logs, tensorboard };

  explicit write_reports(teller tell) : tell_(std::move(tell)) {}

  /// The outcome of a write. `dropped` lines of metrics are lost since the last one.
  void note(kind what, const expected<void>& outcome, std::uint64_t dropped);
  /// Reports what was dropped, if anything.
  void report_dropped(std::uint64_t dropped = 0);

 private:
  teller tell_;
  /// Why files of a kind could not be written last; empty if they could.
  std::array<std::string, 3> problems_;
  /// Lines that have not been reported yet.
  std::uint64_t dropped_ = 0;
};

} // namespace troupe::actors
