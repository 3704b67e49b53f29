#pragma once

#include <troupe/error.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace troupe::collectives {

/// A call that was started and may still be running. Copies refer to the same call.
class pending_call {
 public:
  /// Refers to no call: done, without an error.
  pending_call() = default;

  /// Whether `wait` returns immediately.
  [[nodiscard]] bool is_done() const;

  /// Waits for the call to end and returns its result. May be called repeatedly and from any thread.
  expected<void> wait() const;

 private:
  friend class call_queue;
  struct state;
  std::shared_ptr<state> state_;
};

/// Runs calls one after the other on its own thread, which starts with the first call. One thread at a time adds calls.
class call_queue {
 public:
  call_queue() = default;
  call_queue(const call_queue&) = delete;
  call_queue& operator=(const call_queue&) = delete;

  /// Waits for the running call. The calls behind it are not made and end with `errc::aborted`.
  ~call_queue();

  [[nodiscard]] pending_call start(std::function<expected<void>()> call);

  /// Waits until the queue is empty. Returns immediately on the queue's own thread.
  void wait_until_idle();

  /// Does what the destructor does. Start no call afterwards.
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
