#pragma once

#include <troupe/error.hpp>

#include <atomic>
#include <mutex>
#include <utility>

namespace troupe::collectives {

/// The first failure of a group, which is final. From any thread.
class first_failure {
 public:
  /// Keeps the reason unless there is one already.
  void set(error reason) noexcept {
    const std::lock_guard lock{mutex_};
    if (!is_set_)
      reason_ = std::move(reason);
    is_set_ = true;
  }

  [[nodiscard]] bool is_set() const noexcept { return is_set_; }

  /// The failure, if there is one.
  [[nodiscard]] expected<void> state() const {
    if (!is_set_)
      return {};
    const std::lock_guard lock{mutex_};
    return fail(reason_);
  }

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  error reason_;
};

} // namespace troupe::collectives
