#pragma once

#include <troupe/error.hpp>
#include <troupe/result.hpp>

#include <cstdint>
#include <filesystem>
#include <future>
#include <mutex>
#include <vector>

namespace troupe::runtime {

/// Those who wait for a checkpoint that they have asked for: the first of a step that the run had not done when they
/// asked. Told of the run's events, in their order. Thread-safe.
class checkpoint_waits {
 public:
  using answer = std::shared_future<expected<std::filesystem::path>>;

  /// Between runs, it has failed.
  [[nodiscard]] answer add();

  void on_begin();
  void on(const run_progress& event);
  void on(const checkpoint_saved& event);
  void on(const checkpoint_skipped& event);
  void on(const checkpoint_failed& event);
  /// All that still wait get the run's last checkpoint, if it is new to them, or else why there is none.
  void on_end(const run_result& result);

 private:
  struct wait {
    std::uint64_t after = 0;
    std::promise<expected<std::filesystem::path>> promise;
  };

  /// Answers those to whom a checkpoint of this step is new.
  void answer_for(std::uint64_t step, const expected<std::filesystem::path>& what);

  std::mutex mutex_;
  bool is_running_ = false;
  /// The last step that is known to be done.
  std::uint64_t done_ = 0;
  std::vector<wait> waits_;
};

} // namespace troupe::runtime
