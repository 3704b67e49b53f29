#pragma once

#include "run/summary.hpp"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// A run's status (docs/watching.md) as text for people. Pure, and safe for a terminal.
namespace troupe::tool {

/// What a status does not have, from the run's files.
struct status_extras {
  /// Of the metric that is drawn.
  std::vector<run_summary::point> curve = {};
  /// Who computes longest; empty where nobody is late.
  std::string late = {};
};

/// "3.2 s", "1 min 05 s", "2 h 03 min", "4 d 01 h"
[[nodiscard]] std::string duration_text(double seconds);

/// "[#####-----]"
[[nodiscard]] std::string progress_bar(double part, std::size_t width);

/// The metric that a curve is drawn of: "loss", else the first; empty if there is none.
[[nodiscard]] std::string main_metric(const nlohmann::ordered_json& status);

/// The whole status, a line each, of at most `width` characters.
[[nodiscard]] std::vector<std::string> describe_status(const nlohmann::ordered_json& status,
                                                       const status_extras& extras, std::size_t width);

/// The same in one line: "running, step 120 of 2000 (6 %), loss 2.31, 4 workers, 12 s left".
[[nodiscard]] std::string status_line(const nlohmann::ordered_json& status);

/// One line for an event that people should see; empty for others.
[[nodiscard]] std::string event_line(const nlohmann::ordered_json& event);

/// How a run ended, from its status: "completed after step 2000; its state is in PATH".
[[nodiscard]] std::string end_text(const nlohmann::ordered_json& status);

} // namespace troupe::tool
