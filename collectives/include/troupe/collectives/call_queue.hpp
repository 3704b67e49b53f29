#pragma once

#include <troupe/error.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace troupe::collectives {

/// A call that was started and may still be under way. Copies stand for the same call.
class pending_call {
 public:
  /// Stands for no call: is done, without an error.
  pending_call() = default;

  /// Whether `wait` would return at once.
  [[nodiscard]] bool is_done() const;

  /// Returns once the call has ended, with what it returned. May be called again, and from any thread.
  expected<void> wait() const;

 private:
  friend class call_queue;
  struct state;
  std::shared_ptr<state> state_;
};

/// Runs calls one after the other on a thread of its own, which starts with the first of them. Calls are added by one
/// thread at a time.
class call_queue {
 public:
  call_queue() = default;
  call_queue(const call_queue&) = delete;
  call_queue& operator=(const call_queue&) = delete;

  /// Waits for the call that runs; those behind it end with `errc::aborted` and are not made.
  ~call_queue();

  [[nodiscard]] pending_call start(std::function<expected<void>()> call);

  /// Returns once no call is left. At once when the queue's own thread calls it.
  void wait_until_idle();

  /// What the destructor does. No call may be started afterwards.
  void stop();

 private:
  struct entry {
    std::function<expected<void>()> call;
    std::shared_ptr<pending_call::state> state;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<entry> waiting_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

} // namespace troupe::collectives
