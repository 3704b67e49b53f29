#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <time.h>

namespace troupe::boosting {

/// Whether a thread that has used so much of its processor's time in so long has worked: a thousandth at least,
/// since a host may be crowded. Who waits, for a peer or a lock, uses none.
[[nodiscard]] bool has_worked(std::chrono::nanoseconds processor_time, std::chrono::nanoseconds wall_time) noexcept;

/// Says that the thread that makes it gets on while it is in a call that may take minutes: as long as that thread's own
/// processor time goes on. So a call that waits for ever is found as anywhere else; one that computes for ever is not.
class work_watch {
 public:
  /// `heartbeat` is called in a thread of its own, every `interval`, and in calls' thread.
  explicit work_watch(std::function<void()> alive, std::chrono::milliseconds interval = std::chrono::seconds{1});
  work_watch(const work_watch&) = delete;
  work_watch& operator=(const work_watch&) = delete;

  /// Until its end, the thread is in a call that is watched. It gets on at the begin and at the end in any case.
  class call {
   public:
    explicit call(work_watch& owner) : owner_(owner) {
      owner_.alive_();
      owner_.in_call_ = true;
    }
    ~call() {
      owner_.in_call_ = false;
      owner_.alive_();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;

   private:
    work_watch& owner_;
  };

 private:
  void watch(const std::stop_token& stop, std::chrono::milliseconds interval) const;
  [[nodiscard]] std::chrono::nanoseconds processor_time() const noexcept;

  std::function<void()> alive_;
  ::clockid_t clock_{};
  std::atomic<bool> in_call_{false};
  std::jthread thread_;
};

} // namespace troupe::boosting
