#include "device/event_pool.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::collectives {

expected<device_event*> event_pool::record(stream_handle stream) {
  const std::lock_guard lock{mutex_};
  if (free_.empty()) {
    TROUPE_TRY(auto made, device_event::make(where_));
    free_.push_back(std::make_unique<device_event>(std::move(made)));
  }
  TROUPE_TRY(free_.back()->record(stream));
  used_.push_back(std::move(free_.back()));
  free_.pop_back();
  return used_.back().get();
}

void event_pool::recycle() {
  const std::lock_guard lock{mutex_};
  std::ranges::move(used_, std::back_inserter(free_));
  used_.clear();
}

} // namespace troupe::collectives
