#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace troupe::actors {

/// Limits the log lines about refused peers, which any host that reaches a port can cause. Only some lines are written
/// per minute, and the next minute begins with the number of omitted ones.
class refusal_log {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  static constexpr std::size_t lines_per_minute = 20;

  /// The text to write for this line; nothing if there were too many.
  [[nodiscard]] std::optional<std::string> add(std::string line, time_point now);

 private:
  std::optional<time_point> minute_;
  std::size_t written_ = 0;
  std::size_t dropped_ = 0;
};

} // namespace troupe::actors
