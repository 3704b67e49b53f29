#pragma once

#include <troupe/actors/decisions/heartbeat_monitor.hpp>
#include <troupe/actors/decisions/silence.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {

/// A node's view of the heartbeats of a run's workers: the last heartbeat of each, and which workers are silent. The
/// process of a silent worker lives but does not run; the driver decides what to do with it. A plain class; time and
/// process samples are arguments.
class worker_watch {
 public:
  using clock = std::chrono::steady_clock;

  /// The processes of a worker and of its node, sampled at the same time.
  struct samples {
    process_sample worker;
    process_sample node;
  };
  using sampler = std::function<expected<samples>(worker_id)>;

  /// For the node's log.
  struct finding {
    worker_id worker;
    /// A predicate of the worker: "is silent: its process is stopped".
    std::string text;

    bool operator==(const finding&) const = default;
  };

  explicit worker_watch(std::chrono::milliseconds timeout) : timeout_(timeout), monitor_(timeout) {}

  /// The worker has joined: its heartbeats are expected from now on.
  void add(worker_id worker, clock::time_point now) { monitor_.add(worker, now); }
  void heard(const worker_beat& beat, clock::time_point now);
  /// The worker was killed: expect no more heartbeats.
  void expect_end(worker_id worker);
  /// It has ended.
  void remove(worker_id worker);

  /// Judges workers whose heartbeats are overdue. Call it at regular intervals, a small part of the timeout.
  [[nodiscard]] std::vector<finding> judge(clock::time_point now, const sampler& sample);

  /// For the driver: the heartbeats that came since the last report, and all that are silent now.
  [[nodiscard]] node_beat take_report(const run_id& run);
  /// How many are silent now.
  [[nodiscard]] std::size_t silent() const noexcept { return silent_.size(); }
  /// The last heartbeat of a worker that has not ended; null if none has come.
  [[nodiscard]] const worker_beat* last_beat(worker_id worker) const;

 private:
  std::chrono::milliseconds timeout_;
  heartbeat_monitor<worker_id> monitor_;
  std::map<worker_id, worker_beat> beats_;
  /// Whose last heartbeat is not reported yet.
  std::set<worker_id> unreported_;
  /// Taken when a heartbeat became overdue.
  std::map<worker_id, samples> first_samples_;
  std::map<worker_id, silent_worker> silent_;
  /// Workers that a debugger held when they were last judged.
  std::set<worker_id> held_;
};

} // namespace troupe::actors
