#pragma once

#include <mutex>
#include <utility>

namespace troupe::runtime {

/// A value that several threads use: each use holds the lock for its full expression or scope.
///
///     auto done = protocol.lock()->begin_step(step);
///
/// Nothing that waits belongs into such an expression: the lock would be held meanwhile.
template <class T>
class guarded {
 public:
  class access {
   public:
    access(T& value, std::mutex& mutex) : lock_(mutex), value_(value) {}
    T* operator->() const noexcept { return &value_; }
    T& operator*() const noexcept { return value_; }

   private:
    std::unique_lock<std::mutex> lock_;
    T& value_;
  };

  template <class... Ts>
  explicit guarded(Ts&&... args) : value_(std::forward<Ts>(args)...) {}

  [[nodiscard]] access lock() { return {value_, mutex_}; }

  /// Without the lock: for what only the calling thread ever changes.
  [[nodiscard]] const T& unlocked() const noexcept { return value_; }

 private:
  T value_;
  std::mutex mutex_;
};

} // namespace troupe::runtime
