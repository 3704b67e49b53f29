#pragma once

#include <troupe/types.hpp>

#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The checkpoints of a run that somebody reads: retention removes them later. Callable from any thread.
class checkpoint_holds {
 public:
  /// Holds a checkpoint until it is destroyed.
  class hold {
   public:
    hold(checkpoint_holds& all, step_id step) : all_(&all), step_(step) {}
    hold(hold&& other) noexcept : all_(std::exchange(other.all_, nullptr)), step_(other.step_) {}
    hold& operator=(hold&&) = delete;
    ~hold() {
      if (all_ != nullptr)
        all_->release(step_);
    }

   private:
    checkpoint_holds* all_;
    step_id step_;
  };

  /// This must outlive the result.
  [[nodiscard]] hold take(step_id step) {
    auto lock = std::lock_guard{mutex_};
    held_.insert(step);
    return {*this, step};
  }

  [[nodiscard]] std::vector<step_id> held() const {
    auto lock = std::lock_guard{mutex_};
    return {held_.begin(), held_.end()};
  }

 private:
  void release(step_id step) {
    auto lock = std::lock_guard{mutex_};
    held_.erase(held_.find(step));
  }

  mutable std::mutex mutex_;
  std::multiset<step_id> held_;
};

} // namespace troupe::actors
