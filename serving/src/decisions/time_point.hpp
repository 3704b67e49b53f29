#pragma once

#include <algorithm>
#include <chrono>

namespace troupe::serving {

using time_point = std::chrono::steady_clock::time_point;

/// `wait` after `now`, and ten years at most: the greatest numbers of milliseconds have no time point.
[[nodiscard]] inline time_point after(time_point now, std::chrono::milliseconds wait) noexcept {
  return now + std::min<std::chrono::milliseconds>(wait, std::chrono::hours{24 * 3652});
}

} // namespace troupe::serving
