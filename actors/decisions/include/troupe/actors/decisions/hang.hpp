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
  /// "worker 3 (rank 2) has stood in user code for 31 s, after step 17; ranks 0, 1 and 3 wait for it".
  std::string reason;

  bool operator==(const hang_finding&) const = default;
};

/// Watches ranks whose processes answer, and finds those whose training threads do nothing.
///
/// A rank that stands in user code is at fault. All other ranks that stand still wait for others: in a collective
/// operation, at a checkpoint, or for the driver's actors. If all ranks stand still and none in user code, nobody can
/// be told to be at fault: that is reported. If some of them stand in a collective operation and none at a checkpoint,
/// which has deadlines of its own, the group is also to be formed anew.
///
/// A hang is as long as it was watched: at most two seconds of a gap between two beats count, so that the workers are
/// not blamed for the time in which the driver was stopped or cut off. A run that waits on purpose, for nodes or
/// because it is paused, must not be checked.
class hang_watch {
 public:
  using clock = std::chrono::steady_clock;

  explicit hang_watch(hang_settings settings) : settings_(settings) {}

  /// Takes in a beat. A worker is watched from its first beat.
  void observe(activity_observation beat, clock::time_point now);

  void remove(worker_id worker) { ranks_.erase(worker); }

  /// Forgets all ranks: another generation begins, or a pause ends.
  void clear();

  /// What is due now. Each hang is reported after `report_after`, then at doubled intervals; a replacement or a new
  /// group is asked for once.
  [[nodiscard]] std::vector<hang_finding> check();

 private:
  struct rank_state {
    activity_observation last;
    clock::time_point heard;
    /// How long it has stood still so far, and when that is reported next.
    clock::duration stood{};
    clock::duration report_at{};
    bool replaced = false;
  };

  [[nodiscard]] std::optional<hang_finding> check_one(rank_state& x) const;
  [[nodiscard]] std::optional<hang_finding> check_all();
  [[nodiscard]] clock::duration regroup_after() const;
  [[nodiscard]] std::string describe(const rank_state& culprit, bool replaced) const;
  [[nodiscard]] std::string describe_all(clock::duration stood) const;

  hang_settings settings_;
  std::map<worker_id, rank_state> ranks_;
  clock::duration report_all_at_{};
  bool regroup_asked_ = false;
};

} // namespace troupe::actors
