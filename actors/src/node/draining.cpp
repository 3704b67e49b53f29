#include "node/draining.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// The remaining processes are killed this long before the grace period ends, so that the drivers still learn of it.
constexpr auto last_moment = 500ms;

std::chrono::milliseconds rest(draining::time_point end, draining::time_point now) {
  return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - now), 0ms);
}

} // namespace

std::uint64_t draining::grace_left(time_point now) const {
  return static_cast<std::uint64_t>(rest(grace_ends_, now).count());
}

std::chrono::milliseconds draining::time_left(time_point now) const {
  return rest(grace_ends_ - last_moment, now);
}

void draining::answer() {
  for (auto& each : std::exchange(waiting_, {}))
    each.deliver();
}

} // namespace troupe::actors
