#pragma once

#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

enum class activity_kind : std::uint8_t;

} // namespace troupe

namespace troupe::actors {

struct hang_settings {
  /// A hang is reported when it has lasted this long.
  std::chrono::milliseconds report_after{30'000};
  /// A rank at fault is replaced after this time; 0: never.
  std::chrono::milliseconds replace_after{600'000};
  /// If all ranks wait for each other, the group is formed anew after this time; 0: never.
  std::chrono::milliseconds regroup_after{300'000};
};

/// The state of a worker's training thread at a beat.
struct activity_observation {
  worker_id worker;
  rank_id rank;
  /// Changes whenever the training thread does anything.
  std::uint64_t progress = 0;
  activity_kind activity{};
  /// Where that was, for people: "after step 17". May be empty.
  std::string place;
};

/// What to do about a hang.
struct hang_finding {
  enum class action : std::uint8_t {
    /// Report it.
    report = 1,
    /// Report it, and replace `at_fault`.
    replace = 2,
    /// Report it, and form the group anew.
    regroup = 3,
  };

  action what = action::report;
  /// Nothing if all ranks wait.
  std::optional<worker_id> at_fault;
  /// "worker 3 (rank 2) has made no progress in user code for 31 s, after step 17; ranks 0, 1 and 3 wait for it".
  std::string reason;

  bool operator==(const hang_finding&) const = default;
};

/// Watches ranks whose processes answer, and finds those whose training threads make no progress.
///
/// A rank that makes no progress in user code is at fault; the others wait for it: in a collective operation, at a
/// checkpoint, or for the driver's actors. If no rank makes progress and none is in user code, no rank is at fault: the
/// hang is reported, and if some wait in a collective operation and none at a checkpoint, which has its own deadlines,
/// the group is formed again.
///
/// Only observed time counts, at most two seconds between two heartbeats: a stopped or disconnected driver must not
/// count against workers. Do not check a run that waits on purpose, for nodes or because it is paused.
class hang_watch {
 public:
  using clock = std::chrono::steady_clock;

  explicit hang_watch(hang_settings settings) : settings_(settings) {}

  /// Takes in a beat. A worker is watched from its first beat.
  void observe(activity_observation beat, clock::time_point now);

  void remove(worker_id worker) { ranks_.erase(worker); }

  /// Forgets all ranks: another generation begins, or a pause ends.
  void clear();

  /// The findings due now. Each hang is reported after `report_after`, then at doubled intervals; a replacement or a
  /// new group is requested once.
  [[nodiscard]] std::vector<hang_finding> check();

 private:
  struct rank_state {
    activity_observation last;
    clock::time_point heard;
    /// How long it has made no progress, and when that is reported next.
    clock::duration stalled_for{};
    clock::duration report_at{};
    bool replaced = false;
  };

  [[nodiscard]] std::optional<hang_finding> check_one(rank_state& x) const;
  [[nodiscard]] std::optional<hang_finding> check_all();
  [[nodiscard]] clock::duration regroup_after() const;
  [[nodiscard]] std::string describe(const rank_state& culprit, bool replaced) const;
  [[nodiscard]] std::string describe_all(clock::duration stalled_for) const;

  hang_settings settings_;
  std::map<worker_id, rank_state> ranks_;
  clock::duration report_all_at_{};
  bool regroup_asked_ = false;
};

} // namespace troupe::actors
