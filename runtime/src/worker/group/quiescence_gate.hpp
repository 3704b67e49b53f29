#pragma once

#include <troupe/types.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace troupe::runtime {

/// Tracks when the tracked state does not change: while the training thread waits for a group, the state is that of the
/// last step whose body has returned, and the threads for which it waits may read it.
class quiescence_gate {
 public:
  /// While one lives, the state does not change. For the training thread; scopes may be nested.
  class scope {
   public:
    scope(quiescence_gate& gate, step_id step) : gate_(gate) { gate_.begin(step); }
    ~scope() { gate_.end(); }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

   private:
    quiescence_gate& gate_;
  };

  /// The step whose state it is, once it does not change; nothing if that takes longer than `limit`. From any thread.
  [[nodiscard]] std::optional<step_id> wait(std::chrono::milliseconds limit) {
    auto lock = std::unique_lock{mutex_};
    if (!changed_.wait_for(lock, limit, [this] { return depth_ > 0; }))
      return std::nullopt;
    return step_;
  }

 private:
  void begin(step_id step) {
    {
      auto lock = std::lock_guard{mutex_};
      ++depth_;
      step_ = step;
    }
    changed_.notify_all();
  }

  void end() {
    auto lock = std::lock_guard{mutex_};
    --depth_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int depth_ = 0;
  step_id step_;
};

} // namespace troupe::runtime
