#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {

/// The worker processes of one run on one node: which were started, which live, which were killed and why, and which
/// are stuck, because the kernel does not end them.
class hosted_workers {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// Checks that ids are new. Fails with `errc::already_exists` for an id that was used before or is in the list twice.
  [[nodiscard]] expected<void> check_new(const std::vector<worker_launch>& launches) const;

  /// Its process is being started. It counts as living, because it may request to join before its start is reported.
  void on_starting(worker_id worker);
  /// The start has failed, and the id may be used again.
  void on_not_started(worker_id worker);
  /// Returns whether its end was reported before, because it was stuck.
  [[nodiscard]] bool on_ended(worker_id worker);

  /// Returns whether the caller must kill the process now: it lives and was not killed before.
  [[nodiscard]] bool kill(worker_id worker, std::string why, time_point now);
  /// The run ends: all that live are killed.
  void kill_all(time_point now);
  /// The workers that were killed `patience` ago and have not ended, each once. From then on they count as ended.
  [[nodiscard]] std::vector<worker_id> take_stuck(time_point now, std::chrono::milliseconds patience,
                                                  const std::set<worker_id>& starting);

  [[nodiscard]] bool was_started(worker_id worker) const { return started_.contains(worker); }
  [[nodiscard]] bool lives(worker_id worker) const { return living_.contains(worker); }
  [[nodiscard]] bool was_killed(worker_id worker) const { return killed_.contains(worker); }
  /// Empty if it was not killed, or because the run ends.
  [[nodiscard]] std::string why_killed(worker_id worker) const;
  /// Workers whose ends have not been reported.
  [[nodiscard]] std::vector<worker_id> unreported() const;
  /// How many processes are left.
  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(living_.size()); }
  /// How many live and were not killed.
  [[nodiscard]] std::uint32_t count_running() const;
  /// Whether no process is left.
  [[nodiscard]] bool is_empty() const noexcept { return living_.empty(); }
  [[nodiscard]] bool all_ended_or_stuck() const noexcept { return living_.size() == stuck_.size(); }

 private:
  struct killing {
    std::string why;
    time_point since;
  };

  std::set<worker_id> started_;
  std::set<worker_id> living_;
  std::map<worker_id, killing> killed_;
  std::set<worker_id> stuck_;
};

} // namespace troupe::actors
