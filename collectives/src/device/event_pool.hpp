#pragma once

#include <troupe/collectives/device.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace troupe::collectives {

/// Events that are recorded during a round of reductions and used again in the next. From any thread.
class event_pool {
 public:
  explicit event_pool(std::shared_ptr<device> where) : where_(std::move(where)) {}

  /// The event stays as it is until `recycle`.
  [[nodiscard]] expected<device_event*> record(stream_handle stream);
  /// Call when all recorded events have completed or will never be waited for again.
  void recycle();

 private:
  const std::shared_ptr<device> where_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<device_event>> free_;
  std::vector<std::unique_ptr<device_event>> used_;
};

} // namespace troupe::collectives
