#include <troupe/boosting/work_watch.hpp>

#include <troupe/error.hpp>

#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <stop_token>
#include <utility>

namespace troupe::boosting {

bool has_worked(std::chrono::nanoseconds processor_time, std::chrono::nanoseconds wall_time) noexcept {
  return processor_time.count() > 0 && processor_time >= wall_time / 1000;
}

work_watch::work_watch(std::function<void()> heartbeat, std::chrono::milliseconds interval)
    : heartbeat_(std::move(heartbeat)) {
  if (::pthread_getcpuclockid(::pthread_self(), &clock_) != 0)
    throw exception{errc::internal, "the training thread's processor time cannot be read"};
  thread_ = std::jthread{[this, interval](const std::stop_token& stop) { watch(stop, interval); }};
}

void work_watch::watch(const std::stop_token& stop, std::chrono::milliseconds interval) const {
  std::mutex mutex;
  std::condition_variable_any condition;
  auto lock = std::unique_lock{mutex};
  auto wall = std::chrono::steady_clock::now();
  auto used = processor_time();
  while (!condition.wait_for(lock, stop, interval, [&stop] { return stop.stop_requested(); })) {
    auto wall_now = std::chrono::steady_clock::now();
    auto used_now = processor_time();
    if (in_call_ && has_worked(used_now - used, wall_now - wall))
      heartbeat_();
    wall = wall_now;
    used = used_now;
  }
}

std::chrono::nanoseconds work_watch::processor_time() const noexcept {
  ::timespec now{};
  (void)::clock_gettime(clock_, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

} // namespace troupe::boosting
