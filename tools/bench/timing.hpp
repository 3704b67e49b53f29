#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

/// Timing shared by all benchmarks.
namespace troupe::bench {

using clock_type = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

/// The upper of the two middle values for an even number; 0 without values.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Medians of `runs` alternating calls of each function, in seconds. The first call of each warms up and is not
/// counted.
[[nodiscard]] inline std::vector<double> medians(int runs, const std::vector<std::function<void()>>& sides) {
  std::vector<std::vector<double>> times(sides.size());
  for (int i = 0; i <= runs; ++i)
    for (std::size_t s = 0; s < sides.size(); ++s) {
      auto begin = clock_type::now();
      sides[s]();
      if (i > 0)
        times[s].push_back(seconds_since(begin));
    }
  std::vector<double> result;
  for (auto& each : times)
    result.push_back(median(std::move(each)));
  return result;
}

} // namespace troupe::bench
