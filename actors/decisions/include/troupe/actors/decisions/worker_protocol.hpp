#pragma once

#include <troupe/actors/decisions/evaluation_log.hpp>
#include <troupe/actors/decisions/worker_actions.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace troupe::actors {

/// One worker's half of the membership protocol: its place, how far it is, what it reports when its group is gone, what
/// it does with the answer, and how it catches up as a joiner. The counterpart of `run_coordinator`. A plain class: no
/// actor, clock, thread or I/O. The session of a worker process drives it, and so does the simulation.
///
/// Leaving the barrier and being aborted exclude each other: whichever of `on_barrier` and `on_abort` comes first wins.
/// Not thread-safe: the owner serializes all calls. (Aborts come from an actor's thread, everything else from the
/// training thread.)
class worker_protocol {
 public:
  explicit worker_protocol(const begin_training& begin);

  /// Whether the training function finished the run before its last step: no further step is done.
  [[nodiscard]] bool is_finished() const noexcept { return is_finished_; }
  /// The state that it begins with is that after `step`.
  void on_restored(step_id step) noexcept { steps_.applied = steps_.committed = steps_.reduced = step; }

  // -- loops of the training function

  /// Enters the next loop. False if the loop is skipped: by a joiner if the members have completed it, and by all
  /// workers after a stop or after the step that finished the run.
  [[nodiscard]] bool enter_loop();
  /// Whether a stop has taken effect.
  [[nodiscard]] bool is_stopped() const noexcept { return loop_ == loop_stage::stopped; }
  /// The plan of the loop, completed by what the protocol knows.
  void complete(run_plan& plan) const;
  void on_plan_accepted();
  /// The steps of the loop begin; they are over.
  void begin_steps() noexcept { loop_ = loop_stage::in_steps; }
  void end_steps() noexcept;

  // -- evaluations

  /// What to do at a call of `evaluate`. Throws `exception` if a joiner evaluates what the members did not.
  [[nodiscard]] evaluation_plan plan_evaluation();
  /// Evaluation `number` has this result, on this worker or, after a regroup, on the member that was ahead.
  void on_evaluated(std::uint64_t number, std::vector<double> values);
  /// The training function has the result, which is kept for workers that join later.
  void on_evaluation_returned();
  /// Whether evaluation `number` has a result; a regroup may have brought it.
  [[nodiscard]] bool is_evaluated(std::uint64_t number) const noexcept { return evaluations_.count() >= number; }
  [[nodiscard]] const std::vector<double>& last_evaluation() const noexcept { return evaluations_.last(); }
  /// Whether the result belongs to the steps of a loop: joiners that follow need it then.
  [[nodiscard]] bool is_in_steps() const noexcept { return loop_ == loop_stage::in_steps; }

  // -- steps

  /// False after an abort: no step begins before the worker has reported.
  [[nodiscard]] bool begin_step(step_id step);
  /// The step's reduced gradient is complete here. False after an abort.
  [[nodiscard]] bool on_reduced(step_id step);
  /// What to compare with the other ranks at the barrier of `step`.
  [[nodiscard]] state_comparison comparison() const noexcept;
  /// The words for the barrier of `step`. `digest` is empty for a rank that compares nothing.
  [[nodiscard]] static barrier_words words_for(step_id step, std::uint64_t highest_command,
                                               std::optional<std::uint64_t> digest, std::uint64_t in_flight,
                                               bool owed) noexcept;
  /// The barrier of `step` is complete, with these words. On `committed` the step counts as applied.
  [[nodiscard]] barrier_outcome on_barrier(step_id step, const barrier_words& words);
  /// The body of `step` has returned.
  void on_applied(step_id step) noexcept { steps_.applied = step; }

  // -- boundaries between steps

  /// The commands that the last barrier agreed on and that have not been acted on.
  [[nodiscard]] std::optional<command_range> due_commands() const noexcept;
  /// What to do at the boundary after `step`, in this order. `commands` are those of `due_commands`.
  [[nodiscard]] std::vector<boundary_action> on_boundary(const std::vector<control_command>& commands, step_end end);
  /// Whether the loop that a `stage_command` names is the present one.
  [[nodiscard]] bool is_present_loop(std::uint32_t loop) const noexcept { return loop + 1 == loops_; }

  // -- a lost group

  /// Whether this error means that the group is gone, rather than that the run cannot go on.
  [[nodiscard]] bool is_loss_of_group(const error& reason) const;
  /// The same for an error of a group that was being formed. A peer that cannot be reached is tried a few times.
  [[nodiscard]] bool may_form_again(const error& reason);
  /// Call it before each report about a lost group: from then on no step begins or commits.
  void begin_regroup();
  /// The same at a boundary, where joiners can be let in.
  void begin_regroup_between_steps();
  [[nodiscard]] regroup_report report(error reason, std::vector<rank_id> unreachable = {});
  /// The training function has thrown before the reduction of a step, and will end. No step begins or commits any more.
  [[nodiscard]] regroup_report report_throw(error reason);
  [[nodiscard]] worker_action on_next(next_generation next);
  /// A joiner has received the state over the group of its generation.
  void on_state_received();
  /// The next generation is complete.
  void on_formed();
  /// Returns the driver's reason for aborting the group if it explains more than `otherwise`; else `otherwise`.
  [[nodiscard]] error why_it_ends(const error& otherwise) const;

  // -- a joiner that follows the members

  /// It has the state as it was after `step`.
  void on_staged_state(step_id step);
  /// The joiner is at step `next`; the members have committed up to `latest`. Returns a message for the driver, once,
  /// when the joiner is so close that the members would not wait long. `repeat_took`: how long one step takes here.
  [[nodiscard]] std::optional<caught_up> judge_progress(step_id next, step_id latest,
                                                        std::optional<std::chrono::nanoseconds> repeat_took);
  void on_repeated(step_id step);
  /// The members go on with the joiner after `boundary`. Fails if it is at another step.
  [[nodiscard]] expected<void> on_end_of_staging(step_id boundary, std::uint64_t commands_agreed,
                                                 std::uint64_t evaluations);

  // -- aborts

  [[nodiscard]] abort_effect on_abort(const abort_training& message);
  /// Why the worker's generation is over, if it is.
  [[nodiscard]] std::optional<error> abort_reason() const;
  /// The same for the staging group of a joiner.
  [[nodiscard]] std::optional<error> staging_abort_reason() const;

  // -- where this worker is

  [[nodiscard]] const group_place& place() const noexcept { return place_; }
  [[nodiscard]] rank_id rank() const noexcept { return place_.rank; }
  [[nodiscard]] generation_id generation() const noexcept { return place_.generation; }
  /// Which shards each rank of its generation computes.
  [[nodiscard]] const std::vector<shard_range>& ownership() const noexcept { return ownership_; }
  [[nodiscard]] shard_range shards() const { return ownership_[place_.rank.value]; }
  /// Whether it has the run's state: a joiner has none until the members give it.
  [[nodiscard]] bool has_state() const noexcept;
  /// Whether it repeats the members' steps in a staging group.
  [[nodiscard]] bool follows() const noexcept {
    return std::holds_alternative<following>(state_) || std::holds_alternative<close_behind>(state_);
  }
  /// Whether it has come to a boundary of the members, with their state, and asks for a place.
  [[nodiscard]] bool has_caught_up() const noexcept { return std::holds_alternative<arrived>(state_); }
  /// The staging group it is in, or was in when it caught up.
  [[nodiscard]] const staging_place* staging() const noexcept;
  /// The last step whose body has returned.
  [[nodiscard]] step_id step() const noexcept { return steps_.applied; }
  /// Every step up to this one counts as applied.
  [[nodiscard]] step_id committed() const noexcept { return steps_.committed; }
  /// The last step whose reduced gradient this worker holds or has applied.
  [[nodiscard]] step_id reduced() const noexcept { return steps_.reduced; }
  /// The step that is under way, or the last one.
  [[nodiscard]] step_id step_under_way() const noexcept;
  [[nodiscard]] std::uint64_t commands_agreed() const noexcept { return commands_.agreed; }
  [[nodiscard]] std::uint64_t evaluations() const noexcept { return evaluations_.count(); }
  /// Whether the driver has accepted a plan of this worker.
  [[nodiscard]] bool has_agreed() const noexcept { return loop_ != loop_stage::unplanned; }
  /// A custom loop counts its reports as steps.
  void count_step() noexcept { ++steps_.applied.value; }

 private:
  /// A joiner without state: on its way to a loop, or waiting for a place.
  struct preparing {};
  /// A joiner in a staging group.
  struct following {
    staging_place group;
  };
  /// The same, after it reported to the driver that it is close behind the members.
  struct close_behind {
    staging_place group;
  };
  /// A joiner with the state of a boundary of the members.
  struct arrived {
    staging_place group;
  };
  /// A joiner with a place in a generation, which gets the state over its group.
  struct receiving {};
  /// Has state, place and, as far as it knows, a live group. Which step is under way, and how far.
  struct computing {
    step_id step;
  };
  struct holding {
    step_id step;
  };
  struct between_steps {};
  /// Has state and place, but its group is over.
  struct fenced {};

  enum class loop_stage : std::uint8_t {
    unplanned,
    planned,
    in_steps,
    /// A stop has taken effect: no further step is done.
    stopped,
  };

  /// Where the group was lost, for the next report.
  enum class report_position : std::uint8_t {
    elsewhere,
    /// In a step that is not committed here.
    in_step,
    /// At a boundary, where joiners can be let in.
    between_steps,
  };

  struct aborted_generation {
    generation_id generation;
    error reason;
  };

  void fence();
  void take(group_place place);
  [[nodiscard]] worker_action adopt(member_place next);

  run_id run_;
  worker_id worker_;
  std::uint32_t number_of_shards_;
  group_place place_;
  std::vector<shard_range> ownership_;
  std::variant<preparing, following, arrived, close_behind, receiving, computing, holding, between_steps, fenced>
      state_;
  /// The last of each kind.
  struct {
    step_id applied;
    step_id committed;
    step_id reduced;
  } steps_;
  /// The numbers of the last commands that a barrier agreed on, and that were carried out.
  struct {
    std::uint64_t agreed = 0;
    std::uint64_t done = 0;
  } commands_;
  evaluation_log evaluations_;
  /// Loops that were entered.
  std::uint32_t loops_ = 0;
  loop_stage loop_ = loop_stage::unplanned;
  /// In this process, or before the checkpoint that it began with.
  bool is_finished_ = false;
  report_position position_ = report_position::elsewhere;
  std::uint64_t reports_ = 0;
  /// At the next barrier.
  state_comparison comparison_ = state_comparison::whole;
  /// The last generation that is known to be over, and why.
  std::optional<aborted_generation> aborted_;
  /// Groups that could not be formed since the last committed step.
  std::uint32_t failed_formings_ = 0;
};

} // namespace troupe::actors
