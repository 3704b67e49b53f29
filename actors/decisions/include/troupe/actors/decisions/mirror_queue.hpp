#pragma once

#include <troupe/serialization/checkpoint/retention.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace troupe::actors {

/// What is done at a run's mirror, one job at a time.
namespace mirror_job {

/// Finds out what is there.
struct look {
  bool operator==(const look&) const = default;
};

/// Copies a checkpoint from the run's directory, and verifies the copy.
struct upload {
  step_id step;
  bool operator==(const upload&) const = default;
};

/// Copies the run's other files.
struct upload_records {
  bool operator==(const upload_records&) const = default;
};

/// Removes a checkpoint, or what an upload left that did not get to its end.
struct remove {
  step_id step;
  bool operator==(const remove&) const = default;
};

/// Nothing can be done before this time; without one, nothing before something happens.
struct wait {
  std::optional<std::chrono::steady_clock::time_point> until;
  bool operator==(const wait&) const = default;
};

} // namespace mirror_job

using mirror_action = std::variant<mirror_job::wait, mirror_job::look, mirror_job::upload, mirror_job::upload_records,
                                   mirror_job::remove>;

/// Decides what is copied to a run's mirror, and what is removed there. At most one job is under way; while it is,
/// newer checkpoints supersede older ones that wait, so that no more wait than the newest and the best. After a failure
/// it waits, twice as long each time. A checkpoint is removed only after a newer one has been copied and verified by
/// this queue. A plain class; not thread-safe.
class mirror_queue {
 public:
  using clock = std::chrono::steady_clock;

  struct settings {
    serialization::retention_policy keep = {};
    std::chrono::milliseconds first_delay{2'000};
    std::chrono::milliseconds longest_delay{300'000};
    /// Once the run ends, which does not wait for ever.
    std::chrono::milliseconds longest_last_delay{5'000};
  };

  explicit mirror_queue(settings how) : how_(std::move(how)) {}

  /// The run's directory has another checkpoint. One of the same step replaces what the mirror has.
  void on_saved(serialization::retention_candidate saved);
  /// The run's directory has this checkpoint no longer.
  void on_missing(step_id step);
  /// The run's other files have changed and are wanted at the mirror.
  void on_records_changed() noexcept { are_records_due_ = true; }
  /// No further checkpoint follows: it is tried again sooner.
  void on_end(clock::time_point now);

  /// What to do now. One of the functions below must follow, unless it is `wait`.
  [[nodiscard]] mirror_action next(clock::time_point now);

  /// After `look`: the complete checkpoints, and what is left of others.
  void on_found(std::vector<serialization::retention_candidate> complete, const std::vector<step_id>& incomplete);
  void on_uploaded();
  void on_records_uploaded();
  void on_removed();
  /// The job failed. Returns after which time it is tried again.
  std::chrono::milliseconds on_failed(clock::time_point now);

  /// Whether nothing is left to do, but for removals that have failed.
  [[nodiscard]] bool is_done() const;
  /// The steps of the complete checkpoints there, as far as known, oldest first.
  [[nodiscard]] std::vector<step_id> stored() const;
  /// The newest checkpoint that waits or is being copied.
  [[nodiscard]] std::optional<step_id> newest_waiting() const;
  /// Whether the run's other files have changed since they were copied.
  [[nodiscard]] bool lacks_records() const noexcept {
    return are_records_due_ || std::holds_alternative<mirror_job::upload_records>(under_way_);
  }
  [[nodiscard]] std::uint64_t superseded() const noexcept { return superseded_; }
  [[nodiscard]] std::uint64_t failed_attempts() const noexcept { return failed_attempts_; }

 private:
  /// Failures since the last success, and until when nothing is tried.
  struct back_off {
    std::uint32_t failures = 0;
    clock::time_point until = clock::time_point::min();
  };

  void drop_superseded();
  [[nodiscard]] std::optional<step_id> next_removal() const;
  /// The next job but a removal; `wait` if there is none.
  [[nodiscard]] mirror_action next_copy() const;

  settings how_;
  /// Complete checkpoints there; nothing until it is known.
  std::optional<std::map<step_id, serialization::retention_candidate>> stored_;
  std::set<step_id> incomplete_;
  /// Were complete before an upload of theirs failed, and may be still.
  std::set<step_id> doubtful_;
  std::map<step_id, serialization::retention_candidate> waiting_;
  mirror_action under_way_;
  /// The newest that this queue has copied.
  std::optional<step_id> verified_;
  bool are_records_due_ = false;
  bool is_ending_ = false;
  back_off copying_;
  /// Separate: who may not remove may still copy.
  back_off removing_;
  std::uint64_t superseded_ = 0;
  std::uint64_t failed_attempts_ = 0;
};

} // namespace troupe::actors
