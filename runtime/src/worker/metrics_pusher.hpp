#pragma once

#include "worker/driver_client.hpp"

#include <troupe/messages.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace troupe::runtime {

/// Takes metrics from the training thread without ever making it wait, and pushes them to the driver from a thread of
/// its own: one batch under way at a time, at most some fifty a second. When the driver cannot keep up, the newest
/// reports are given up and counted.
class metrics_pusher {
 public:
  /// `head` has run, worker and rank; `link` outlives this.
  metrics_pusher(driver_client& link, metrics_batch head);
  ~metrics_pusher();

  void report(metric_row row);
  void record(ledger_row row);
  void record(pause_row row);
  void record(not_finite_row row);
  /// A checkpoint that was due after this step was left out.
  void skipped(step_id step);
  /// The training thread has applied this step.
  void applied(step_id step);

  /// For what is reported from now on; what was reported before is pushed first, as it is. Waits for that for a moment,
  /// because others may go on with the state of a process that is killed next, but not for a driver that is slow.
  void set_rank(rank_id rank);

  /// Returns when everything that was reported before has been pushed, or cannot be. From any thread.
  void flush();

 private:
  struct sealed_batch {
    metrics_batch content;
    /// How much had been reported with it.
    std::uint64_t changes = 0;
  };

  void loop();
  /// False if it takes longer than that.
  bool flush_within(std::chrono::milliseconds limit);
  /// Wakes the thread if it is idle; a busy one is left alone. With the mutex held.
  void wake();
  [[nodiscard]] bool dirty() const noexcept;
  /// Whether something was reported under the present rank that is not under way.
  [[nodiscard]] bool has_pending() const noexcept;
  /// What is to be pushed next.
  [[nodiscard]] sealed_batch take();

  static constexpr std::size_t limit_rows = 65536;
  static constexpr std::size_t limit_sealed = 16;

  driver_client& link_;
  metrics_batch head_;
  std::mutex mutex_;
  /// Wakes the thread when it has nothing to do.
  std::condition_variable work_;
  /// Tells of flushes and their ends.
  std::condition_variable changed_;
  bool idle_ = false;
  metrics_batch pending_;
  /// What was reported under earlier ranks.
  std::deque<sealed_batch> sealed_;
  step_id pushed_;
  std::uint64_t batches_ = 0;
  bool busy_ = false;
  /// Counts what was reported, and how much of it has been pushed.
  std::uint64_t changes_ = 0;
  std::uint64_t pushed_changes_ = 0;
  int flushing_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace troupe::runtime
