#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/result.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The exit status in the `worker_ended` of a process that could not be started at all.
inline constexpr std::int32_t never_started = -1;

/// `who` failed in this generation for this reason.
[[nodiscard]] failure_record describe_failure(const worker_record& who, generation_id generation, error reason);

/// Whether another worker may do what this one cannot: data may be damaged on the way, a GPU may be lost.
[[nodiscard]] inline bool may_be_an_accident(const error& reason) noexcept {
  return reason.code == errc::user_error || reason.code == errc::device_error;
}

/// Who ended the process; `killed_by` if it was killed. What took more memory than there is would do so again, although
/// the kernel kills it.
[[nodiscard]] ended_by who_ended(const worker_ended& message, ended_by killed_by = ended_by::outside);

/// The process of `who`, which stood here, has ended in this generation: that is a failure.
[[nodiscard]] failure_record describe_exit(const worker_record& who, const worker_standing& before,
                                           generation_id generation, const worker_ended& message);

/// What has failed in a run, in the order in which it was reported.
class failure_log {
 public:
  /// A collective that was cut off is a consequence: of a loss that may be reported only later.
  void add(failure_record what);
  [[nodiscard]] const std::vector<failure_record>& records() const noexcept { return records_; }
  /// The index of the next failure.
  [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }

  /// The run ends with the failures from `first` on: moves their cause to the front of them, and returns its reason.
  error conclude(std::size_t first);

 private:
  std::vector<failure_record> records_;
};

/// Tells accidents from what happens again: the same failure in the next try ends the run.
class repeated_failures {
 public:
  /// The run begins after this step.
  explicit repeated_failures(step_id first_step) : furthest_(first_step) {}

  /// A worker failed by itself after `step`; its record has this index in the log. Returns the index of the first
  /// failure after that step, if there was one before.
  [[nodiscard]] std::optional<std::size_t> note_own_failure(step_id step, std::size_t index);

  /// No rank makes progress, and `furthest` is the last step that any of them applied. Returns whether the last hang
  /// was after the same step.
  [[nodiscard]] bool note_hang(step_id furthest);

  /// Not all workers of an attempt joined in time. Returns whether that happened since training last began.
  [[nodiscard]] bool note_late_start();
  void note_begin() noexcept { late_starts_ = 0; }

  /// An attempt is over: nobody is left. `furthest` is the last step that it applied, `cause` says whether a process of
  /// it has ended by itself. Returns whether the next would probably end so, too: of those in a row that did not pass
  /// the furthest step, processes of three have ended by themselves, or they are ten in all.
  [[nodiscard]] bool note_end_of_attempt(step_id furthest, ended_by cause);
  /// Whether it is those that ended by themselves.
  [[nodiscard]] bool ends_by_itself() const noexcept;
  /// "3 attempts ended in step 120", for people; not if none has ended by itself.
  [[nodiscard]] std::string describe_own_ends() const;
  /// How many in a row have ended without a new step.
  [[nodiscard]] std::uint32_t fruitless_attempts() const noexcept { return fruitless_attempts_; }

 private:
  std::map<step_id, std::size_t> failed_after_;
  std::optional<step_id> hung_after_;
  std::uint32_t late_starts_ = 0;
  std::uint32_t fruitless_attempts_ = 0;
  /// After which steps those have ended by themselves that did not pass `furthest_`.
  std::vector<step_id> own_ends_;
  /// The furthest step that any attempt has applied.
  step_id furthest_;
};

} // namespace troupe::actors
