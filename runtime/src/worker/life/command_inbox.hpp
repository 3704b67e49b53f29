#pragma once

#include <troupe/messages.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace troupe::runtime {

/// The commands that have come from the driver, by number. Filled by the worker actor, read by the training thread at
/// barriers.
class command_inbox {
 public:
  void add(const control_command& command) {
    {
      auto lock = std::lock_guard{mutex_};
      // Commands are numbered from 1 without gaps; drop a repeated one.
      if (command.sequence != commands_.size() + 1)
        return;
      commands_.push_back(command);
    }
    arrived_.notify_all();
  }

  /// The highest number that has come.
  [[nodiscard]] std::uint64_t highest() const {
    auto lock = std::lock_guard{mutex_};
    return commands_.size();
  }

  /// The commands after number `from` up to number `to`, which some rank has seen: waits until they arrive here as
  /// well. Empty if they do not arrive in time.
  [[nodiscard]] std::vector<control_command> take(std::uint64_t from, std::uint64_t to,
                                                  std::chrono::milliseconds limit) {
    auto lock = std::unique_lock{mutex_};
    if (!arrived_.wait_for(lock, limit, [&] { return commands_.size() >= to; }))
      return {};
    return {commands_.begin() + static_cast<std::ptrdiff_t>(from), commands_.begin() + static_cast<std::ptrdiff_t>(to)};
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<control_command> commands_;
};

} // namespace troupe::runtime
