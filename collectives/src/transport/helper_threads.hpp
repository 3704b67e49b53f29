#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::collectives {

/// Threads that share the work of a call with its caller. One thread makes the calls.
class helper_threads {
 public:
  explicit helper_threads(std::size_t count);
  helper_threads(const helper_threads&) = delete;
  helper_threads& operator=(const helper_threads&) = delete;
  ~helper_threads();

  [[nodiscard]] std::size_t size() const noexcept { return threads_.size(); }

  /// Calls `work(0)` here and `work(1)` to `work(lanes - 1)` on as many other threads, and returns when all have
  /// returned. `work` must not throw.
  void run(std::size_t lanes, const std::function<void(std::size_t)>& work);

 private:
  void help(std::size_t lane);

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::uint64_t calls_ = 0;
  std::size_t lanes_ = 0;
  std::size_t busy_ = 0;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

} // namespace troupe::collectives
