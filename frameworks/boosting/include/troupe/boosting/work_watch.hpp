#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <time.h>

namespace troupe::boosting {

/// Whether a thread that used `processor_time` during `wall_time` has computed: at least a thousandth, since the host
/// may be overloaded. A thread that waits for a peer or a lock uses none.
[[nodiscard]] bool has_worked(std::chrono::nanoseconds processor_time, std::chrono::nanoseconds wall_time) noexcept;

/// Reports progress for the thread that creates it while that thread is in a call that may take minutes, as long as the
/// thread uses processor time. A call that waits forever is therefore detected as a hang; one that computes forever is
/// not.
class work_watch {
 public:
  /// `heartbeat` is called on a separate thread every `interval`, and on the watched thread.
  explicit work_watch(std::function<void()> heartbeat, std::chrono::milliseconds interval = std::chrono::seconds{1});
  work_watch(const work_watch&) = delete;
  work_watch& operator=(const work_watch&) = delete;

  /// The thread is in a watched call while this exists. Reports progress at its beginning and end in any case.
  class call {
   public:
    explicit call(work_watch& owner) : owner_(owner) {
      owner_.heartbeat_();
      owner_.in_call_ = true;
    }
    ~call() {
      owner_.in_call_ = false;
      owner_.heartbeat_();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;

   private:
    work_watch& owner_;
  };

 private:
  void watch(const std::stop_token& stop, std::chrono::milliseconds interval) const;
  [[nodiscard]] std::chrono::nanoseconds processor_time() const noexcept;

  std::function<void()> heartbeat_;
  ::clockid_t clock_{};
  std::atomic<bool> in_call_{false};
  std::jthread thread_;
};

} // namespace troupe::boosting
