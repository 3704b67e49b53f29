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
  /// A hang is told when it has lasted so long.
  std::chrono::milliseconds report_after{30'000};
  /// Who is at fault is to be replaced after so long; 0: never.
  std::chrono::milliseconds replace_after{600'000};
  /// Where all wait for each other, so that nobody is at fault, the group is to be formed anew after so long; 0: never.
  std::chrono::milliseconds regroup_after{300'000};
};

/// What a worker's beat says about its training thread.
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
    /// Say it.
    report = 1,
    /// Say it, and replace `at_fault`.
    replace = 2,
    /// Say it, and form the group anew.
    regroup = 3,
  };

  action what = action::report;
  /// Nobody, where they cannot be told apart.
  std::optional<worker_id> at_fault;
  /// "worker 3 (rank 2) has stood in user code for 31 s, after step 17; ranks 0, 1 and 3 wait for it".
  std::string reason;

  bool operator==(const hang_finding&) const = default;
};

/// Watches ranks whose processes answer, and finds those whose training threads do nothing.
///
/// At fault is who stands in user code, whoever else stands still waits for others: in a collective operation, at a
/// checkpoint, or for the driver's actors. When all stand still and nobody in user code, nobody can be told apart: that
/// is said; and where some stand in a collective operation and none at a checkpoint, which has deadlines of its own,
/// the group has to be formed anew.
///
/// A hang is as long as it was watched: of a gap between two beats a few seconds count at most, so that a driver
/// that was stopped or cut off does not hold the time in which it heard nothing against the workers. A run that waits
/// on purpose, for nodes or because it is paused, is not to be checked.
class hang_watch {
 public:
  using clock = std::chrono::steady_clock;

  explicit hang_watch(hang_settings settings) : settings_(settings) {}

  /// Takes in a beat. The first one of a worker begins to watch it.
  void observe(activity_observation beat, clock::time_point now);

  void remove(worker_id worker) { ranks_.erase(worker); }

  /// Forgets all: another generation begins, or a pause ends.
  void clear();

  /// What is due now. Each hang is told after `report_after`, then at doubled intervals; a replacement and
  /// another group are asked for once.
  [[nodiscard]] std::vector<hang_finding> check();

 private:
  struct rank_state {
    activity_observation last;
    clock::time_point heard;
    /// How long it has stood so far, and when that is to be told next.
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
