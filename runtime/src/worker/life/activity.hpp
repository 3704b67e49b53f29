#pragma once

#include <troupe/messages.hpp>

#include <atomic>
#include <cstdint>

namespace troupe::runtime {

/// The activity of the training thread, for hang detection. Written by that thread, read by any.
class activity {
 public:
  /// While it lives, the training thread is in a call of this kind.
  class scope {
   public:
    scope(activity& owner, activity_kind kind) noexcept : owner_(owner), outer_(owner.enter(kind)) {}
    ~scope() { owner_.enter(outer_); }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

   private:
    activity& owner_;
    activity_kind outer_;
  };

  /// Something was done.
  void touch() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }
  [[nodiscard]] activity_kind kind() const noexcept { return kind_.load(std::memory_order_relaxed); }

 private:
  activity_kind enter(activity_kind kind) noexcept {
    touch();
    return kind_.exchange(kind, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> progress_{0};
  std::atomic<activity_kind> kind_{activity_kind::user_code};
};

} // namespace troupe::runtime
