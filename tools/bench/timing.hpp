#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

/// What all benchmarks count with.
namespace troupe::bench {

using clock_type = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

/// The upper one of two in the middle; 0 of none.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

} // namespace troupe::bench
