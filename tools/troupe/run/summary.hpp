#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::tool {

/// What a run's files say, put together.
struct run_summary {
  struct point {
    std::uint64_t step = 0;
    double value = 0;
  };
  struct pauses {
    std::uint64_t count = 0;
    double seconds = 0;
  };

  /// Events of kind "failure" that are causes, in order.
  std::vector<nlohmann::json> failures;
  /// Those that are consequences of others.
  std::uint64_t consequences = 0;
  /// Rank 0's reports, by metric.
  std::map<std::string, std::vector<point>> metrics;
  std::uint64_t last_step = 0;
  /// By rank: how long it made no progress while a group was formed.
  std::map<std::uint64_t, pauses> paused;
  /// Seconds of training, over all processes of the run; those in which no step was made, because a group was formed;
  /// and those for steps that were computed again.
  double seconds = 0;
  double seconds_paused = 0;
  double seconds_redone = 0;
  std::uint64_t steps_redone = 0;

  /// The part of the time in which the run got ahead; 1 before the first report.
  [[nodiscard]] double goodput() const noexcept;
};

/// Of the rows of `metrics.jsonl` and `events.jsonl`. Pure.
[[nodiscard]] run_summary summarize(std::span<const nlohmann::json> metrics, std::span<const nlohmann::json> events);

/// One line for an event: time, kind and what it says.
[[nodiscard]] std::string describe_event(const nlohmann::json& event);

/// A curve of at most `width` characters, each of a mean.
[[nodiscard]] std::string sparkline(std::span<const run_summary::point> points, std::size_t width);

} // namespace troupe::tool
