#pragma once

#include <map>
#include <string>

namespace troupe {

/// Named numbers: metrics of a step, or of a run. Ordered by name.
using metric_map = std::map<std::string, double>;

} // namespace troupe
