#pragma once

#include "memory.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace fake_cuda {

/// Executes work in order on a thread with random pauses, so that code that forgets to wait usually fails. A lost
/// device does no work. With TROUPE_FAKE_CUDA_SYNCHRONOUS whoever adds work waits for it.
class stream : public std::enable_shared_from_this<stream> {
 public:
  /// `seed` determines the pauses; 0: none.
  [[nodiscard]] static std::shared_ptr<stream> start(int device, std::uint32_t seed);

  [[nodiscard]] int device() const noexcept { return device_; }
  void add(std::function<void()> work);
  void wait_until_idle();
  /// Work that was added before is still done.
  void end();

 private:
  stream(int device, std::uint32_t seed)
      : device_(device), pauses_(seed != 0), is_synchronous_(is_synchronous()), random_(seed) {}
  void run();

  const int device_;
  const bool pauses_;
  const bool is_synchronous_;
  std::mt19937 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool is_busy_ = false;
  bool is_ending_ = false;
};

/// Counts how often the event was recorded, and how many of those records have been reached.
class event {
 public:
  explicit event(int device) : device_(device) {}

  [[nodiscard]] int device() const noexcept { return device_; }
  /// Returns the number of the new record.
  std::uint64_t add();
  [[nodiscard]] std::uint64_t last();
  void complete(std::uint64_t record);
  [[nodiscard]] bool is_complete(std::uint64_t record);
  void wait(std::uint64_t record);

 private:
  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t completed_ = 0;
};

/// The error that has befallen this process's devices; permanent, as with CUDA.
class loss {
 public:
  [[nodiscard]] static cudaError_t code() noexcept { return current; }
  static void set(cudaError_t code) noexcept { current = code; }

 private:
  static inline std::atomic<cudaError_t> current = cudaSuccess;
};

} // namespace fake_cuda
