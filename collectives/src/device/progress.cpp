#include "device/progress.hpp"

#include <fmt/format.h>

namespace troupe::collectives {

void device_progress::begin(const std::string& call) {
  const std::lock_guard lock{mutex_};
  call_ = call;
}

void device_progress::clear() {
  milestones_.clear();
  begin({});
}

void device_progress::look() noexcept {
  for (const auto& next : milestones_)
    if (const auto has_come = next.event->has_completed(); has_come && !*has_come) {
      awaits_own_gpu_ = next.whom == waits_for::own_gpu;
      return;
    }
  awaits_own_gpu_ = false;
}

std::string device_progress::describe() const {
  const std::lock_guard lock{mutex_};
  if (call_.empty())
    return "outside a reduction";
  return fmt::format("in {}{}", call_, awaits_own_gpu() ? ", which waits for this worker's own GPU" : "");
}

} // namespace troupe::collectives
