#pragma once

#include "worker/life/driver_client.hpp"

#include <troupe/messages.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace troupe::runtime {

/// Takes metrics from the training thread without blocking it and pushes them to the driver from its own thread: one
/// batch at a time, at most about fifty a second. Excess reports are dropped and counted.
class metrics_pusher {
 public:
  /// `head` has run, worker and rank; `driver` outlives this.
  metrics_pusher(driver_client& driver, metrics_batch head);
  ~metrics_pusher();

  void report(metric_row row);
  void record(ledger_row row);
  void record(pause_row row);
  void record(not_finite_row row);
  void record(times_row row);
  /// A checkpoint that was due after this step was left out.
  void skipped(step_id step);
  /// The training thread has applied this step.
  void applied(step_id step);

  /// Later reports belong to this rank. Pushes earlier ones first, and waits briefly for that: this process may be
  /// killed while others continue with its state.
  void set_rank(rank_id rank);

  /// Returns when everything that was reported before has been pushed, or cannot be. From any thread.
  void flush();

 private:
  struct sealed_batch {
    metrics_batch content;
    /// How much had been reported with it.
    std::uint64_t changes = 0;
  };

  /// The state of the thread.
  enum class phase : std::uint8_t {
    idle,
    pushing,
    /// Between two batches, so that the next is larger.
    pausing,
    /// It ends, because this object does.
    stopping,
  };

  void loop();
  /// False if it takes longer than that.
  bool flush_within(std::chrono::milliseconds limit);
  /// Wakes the thread if it is idle; a busy one is left alone. With the mutex held.
  void wake();
  [[nodiscard]] bool dirty() const noexcept;
  /// Whether something was reported under the present rank that is not under way.
  [[nodiscard]] bool has_pending() const noexcept;
  /// Takes the next batch to push.
  [[nodiscard]] sealed_batch take();

  static constexpr std::size_t limit_rows = 65536;
  static constexpr std::size_t limit_sealed = 16;

  driver_client& driver_;
  metrics_batch head_;
  std::mutex mutex_;
  /// Wakes the thread when it has nothing to do.
  std::condition_variable work_;
  /// Tells of flushes and their ends.
  std::condition_variable changed_;
  metrics_batch pending_;
  /// Batches that were reported under earlier ranks.
  std::deque<sealed_batch> sealed_;
  step_id pushed_;
  std::uint64_t batches_ = 0;
  /// Counts what was reported, and how much of it has been pushed.
  std::uint64_t changes_ = 0;
  std::uint64_t pushed_changes_ = 0;
  int flushing_ = 0;
  phase phase_ = phase::pausing;
  std::thread thread_;
};

} // namespace troupe::runtime
