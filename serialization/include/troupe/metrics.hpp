#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// Named numbers: metrics of a step, or of a run. Ordered by name.
using metric_map = std::map<std::string, double>;

/// The step that each of some metrics is from, by name.
using metric_steps = std::map<std::string, std::uint64_t>;

} // namespace troupe
