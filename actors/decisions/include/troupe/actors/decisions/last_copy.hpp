#pragma once

#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

namespace troupe::actors {

/// How far the last copy of a run's state is. Times begin with the first tick.
namespace copy_phase {

struct collecting {
  std::optional<run_time> since;
  /// Stop waiting for the other reports.
  bool is_late = false;
};

struct saving {
  worker_id who;
  step_id step;
  /// The step that `who` has committed: `step`, or the one before, and it applies `step` first.
  step_id committed;
  std::optional<run_time> since;
};

/// It is saved, or cannot be.
struct over {
  std::optional<run_time> since;
  bool is_late = false;
};

} // namespace copy_phase

/// Saves the state of a failing run while a member has it. The members report, as after any loss. A member that can
/// save the latest step that counts is asked to save the whole state, and the next one if that one ends first. The
/// others wait and are refused once it is saved. All phases have time limits. A plain class; not thread-safe.
class last_copy {
 public:
  /// Every worker is answered that the run ends for `reason`. A state that is no later than `known` is not saved.
  last_copy(error reason, step_id known) : reason_(std::move(reason)), known_(known) {}
  /// The same, but saves nothing: the state must not be kept, or no worker can save it.
  explicit last_copy(error reason) : reason_(std::move(reason)), phase_(copy_phase::over{}) {}

  /// The answer to every worker.
  [[nodiscard]] const error& reason() const noexcept { return reason_; }
  /// The members' groups have been aborted; some had reported before.
  [[nodiscard]] run_actions begin(worker_table& workers);
  [[nodiscard]] run_actions on_report(worker_table& workers, worker_record& who, const regroup_report& report);
  /// Whether this worker was asked, and has not ended.
  [[nodiscard]] bool is_asked(worker_id worker) const noexcept;
  /// This one's training function has ended, with this error.
  [[nodiscard]] run_actions on_finished(worker_table& workers, worker_id worker, errc reason);
  /// Its process has ended.
  [[nodiscard]] run_actions on_ended(worker_table& workers, worker_id worker);
  /// To be called several times a second.
  [[nodiscard]] run_actions on_tick(worker_table& workers, run_time now);
  /// Whether nobody is asked to save any more.
  [[nodiscard]] bool is_over() const noexcept { return std::holds_alternative<copy_phase::over>(phase_); }
  /// Whether the remaining workers' time to end is over.
  [[nodiscard]] bool is_overdue() const noexcept;

 private:
  /// What a member does with a step whose gradient it holds, before it saves.
  enum class held_steps : std::uint8_t { applied, left_out };

  /// A member that can save the state after `step`.
  struct candidate {
    worker_place place;
    step_id step;
    step_id committed;
  };

  [[nodiscard]] std::optional<candidate> choose(const worker_table& workers) const;
  [[nodiscard]] run_actions go_on(worker_table& workers);
  [[nodiscard]] run_actions end(worker_table& workers);

  error reason_;
  step_id known_;
  std::variant<copy_phase::collecting, copy_phase::saving, copy_phase::over> phase_;
  held_steps held_ = held_steps::applied;
};

} // namespace troupe::actors
