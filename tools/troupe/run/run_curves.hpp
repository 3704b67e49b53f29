#pragma once

#include "run/status_text.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::tool {

/// The curve of a metric, from the end of a run's metrics.jsonl.
[[nodiscard]] std::vector<run_summary::point> read_curve(const std::filesystem::path& run, const std::string& metric);

/// Who computes longest of late, from the end of a run's times.jsonl; empty where nobody is late.
[[nodiscard]] std::string read_slowest(const std::filesystem::path& run);

} // namespace troupe::tool
