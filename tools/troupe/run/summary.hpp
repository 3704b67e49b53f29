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

  /// Where the time of a rank's steps went, in seconds of all these steps.
  struct step_times {
    std::uint64_t steps = 0;
    double compute = 0;
    double wait = 0;
    double barrier = 0;
  };

  /// What the drivers of the run say of their time, added up: each at its end, and now and then before.
  struct account {
    /// How many of its processes have said so.
    std::uint64_t processes = 0;
    double seconds = 0;
    double productive = 0;
    std::uint64_t steps_redone = 0;
    /// By cause.
    std::map<std::string, double> lost;
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
  /// By rank.
  std::map<std::uint64_t, step_times> times;
  /// Seconds of training, over all processes of the run; those in which no step was made, because a group was formed;
  /// and those for steps that were computed again.
  double seconds = 0;
  double seconds_paused = 0;
  double seconds_redone = 0;
  std::uint64_t steps_redone = 0;

  account told;

  /// The part of the time in which the run got ahead: as its drivers say, or, if none did, as far as pauses and steps
  /// that were computed again tell; 1 before the first report.
  [[nodiscard]] double goodput() const noexcept;
};

/// The rows of the files of these names.
struct run_rows {
  std::vector<nlohmann::json> metrics;
  std::vector<nlohmann::json> events;
  std::vector<nlohmann::json> times;
};

/// Pure.
[[nodiscard]] run_summary summarize(const run_rows& rows);

/// Names the rank that computes longest, if the others wait for it: "rank 3 computes 1.50 times as long as the median
/// rank". Empty where they are within a tenth. Pure.
[[nodiscard]] std::string describe_slowest(const std::map<std::uint64_t, run_summary::step_times>& times);

/// One line for an event: time, kind and what it says; of texts of several lines the first, and how many there are.
[[nodiscard]] std::string describe_event(const nlohmann::json& event);

/// A curve of at most `width` characters, each of a mean.
[[nodiscard]] std::string sparkline(std::span<const run_summary::point> points, std::size_t width);

} // namespace troupe::tool
