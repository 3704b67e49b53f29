#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace troupe::actors {

/// Lines about peers that are refused. Whoever can reach a port can cause as many as he likes, so only some are
/// written in a minute, and the next minute begins with the number of those that were not.
class refusal_log {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  static constexpr std::size_t lines_per_minute = 20;

  /// What is to be written of this line; nothing if there were too many.
  [[nodiscard]] std::optional<std::string> add(std::string line, time_point now);

 private:
  std::optional<time_point> minute_;
  std::size_t written_ = 0;
  std::size_t dropped_ = 0;
};

} // namespace troupe::actors
