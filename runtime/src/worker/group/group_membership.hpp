#pragma once

#include "worker/group/quiescence_gate.hpp"
#include "worker/group/worker_group.hpp"
#include "worker/guarded.hpp"
#include "worker/life/activity.hpp"
#include "worker/state/checkpointer.hpp"
#include "worker/state/state_catch_up.hpp"
#include "worker/state/state_stager.hpp"

#include <troupe/actors/decisions/worker_protocol.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace troupe {

/// Thrown to leave the training function of a released worker. Not derived from a standard type, so that user handlers
/// do not catch it.
struct worker_released {};

} // namespace troupe

namespace troupe::runtime {

/// This worker's membership: drives its half of the protocol, and applies its decisions to the group, the state of
/// joiners and the checkpoints in flight. Used by the training thread, except for `abort` and `beat`. Throws
/// `exception` if the run cannot continue.
class group_membership {
 public:
  /// The references outlive this object.
  group_membership(const begin_training& begin, driver_client& driver, tracked_state& state, checkpointer& checkpoints,
                   metrics_pusher& pusher, activity& doing, device_factories factories);

  /// For the training thread, without the lock: what an abort does not change (place, steps, commands, evaluations,
  /// loop). Questions about the state itself (`has_state`, `follows`, `staging`, ...) go through `locked`.
  [[nodiscard]] const actors::worker_protocol& protocol() const noexcept { return protocol_.unlocked(); }
  [[nodiscard]] guarded<actors::worker_protocol>::access locked() { return protocol_.lock(); }
  [[nodiscard]] worker_group& group() noexcept { return group_; }
  /// Gives the state to joiners.
  [[nodiscard]] state_stager& stager() noexcept { return stager_; }
  /// For the groups that the stager forms.
  [[nodiscard]] staging_means means_of_stager() { return means(&driver_client::exchange_staging); }
  [[nodiscard]] state_catch_up& catch_up() noexcept { return catch_up_; }
  /// While this scope lives, the training thread does not change the tracked state.
  [[nodiscard]] quiescence_gate::scope quiet() { return {gate_, protocol().step()}; }
  [[nodiscard]] quiescence_gate& gate() noexcept { return gate_; }

  /// The state of this step was restored: the first group of a worker that has a place is formed with it.
  void form_first();
  /// Throws if this worker has no group: a joiner before its first loop, or a custom loop that lost it.
  [[nodiscard]] collectives::communicator& communicator();

  enum class outcome : std::uint8_t {
    /// This worker has a place in the next generation, and the state.
    placed,
    /// This joiner has a place in a staging group: it follows the members.
    follows,
    /// The members have completed the loop that this joiner has come to.
    skips_loop,
  };

  /// Reports, waits for the decision and forms the next generation; repeats this until it succeeds. Then
  /// `protocol().committed()` is the decided step, and nothing of the old generation is in use except reduced results.
  /// Also throws `worker_released`.
  outcome regroup(error reason) { return regroup(std::move(reason), position::elsewhere); }
  /// The same at a boundary that all members have come to.
  void regroup_between_steps() { regroup({}, position::between_steps); }
  /// The training function has thrown in a step that is not reduced, and will fail with `reason`. Returns whether to
  /// save the state of the step before, which no other worker has.
  [[nodiscard]] bool has_to_save(error reason);
  /// Saves it. The reduction has ended. Throws if the run ends for another reason, and the state was saved for that.
  void save_before_end();
  /// To be called between two steps: if the run has ended in the step before, this worker saves the state and throws.
  void leave_if_asked();

  [[nodiscard]] bool is_loss_of_group(const error& reason) { return protocol_.lock()->is_loss_of_group(reason); }
  [[nodiscard]] bool may_form_again(const error& reason) { return protocol_.lock()->may_form_again(reason); }
  /// On a joiner with a place in a staging group: takes the state as it was at a boundary of the members.
  [[nodiscard]] expected<void> take_staged_state();
  /// What the members did next; it stays until it is taken. Fails where they are lost.
  [[nodiscard]] expected<staged_frame*> look_at_frame();
  /// The members' reduced bucket of this step, valid until the next frame. Fails where they are lost. Throws
  /// `errc::mismatch` where they did something else.
  [[nodiscard]] expected<std::span<const std::byte>> gradient_of_members(step_id step);

  /// A step was committed: ends a pause, if one was under way.
  void note_commit(step_id step);
  /// Prepare checkpoints for each group, even if none is taken at regular intervals.
  void prepare_checkpoints_always() noexcept { prepares_checkpoints_ = true; }
  void prepare_checkpoints();

  /// From any thread.
  void abort(const abort_training& message);
  /// Fills in generation, step and activity. From any thread.
  void beat(worker_beat& into) noexcept;

 private:
  enum class position { elsewhere, between_steps };

  outcome regroup(error reason, position where);
  [[nodiscard]] next_generation report(error reason, std::vector<rank_id> unreachable);
  /// Takes the place in a new generation. False if that is lost while it forms.
  [[nodiscard]] bool form(const member_place& place, error& lost);
  [[noreturn]] void save_and_leave(error reason);
  /// True also if nothing is tracked.
  [[nodiscard]] expected<void> save_last_copy();
  void share_last_evaluation(const member_place& next);
  void exchange_state(const member_place& next);
  [[nodiscard]] staging_means means(expected<exchange_result> (driver_client::*exchange)(const exchange_request&));

  const begin_training& begin_;
  driver_client& driver_;
  tracked_state& state_;
  checkpointer& checkpoints_;
  metrics_pusher& pusher_;
  activity& activity_;
  guarded<actors::worker_protocol> protocol_;
  /// Controls when other threads may read the tracked state.
  quiescence_gate gate_;
  worker_group group_;
  state_stager stager_;
  state_catch_up catch_up_;
  std::chrono::steady_clock::time_point last_commit_ = std::chrono::steady_clock::now();
  /// When the last step before the group was lost was committed.
  std::optional<std::chrono::steady_clock::time_point> pause_began_;
  /// The run, or this worker, ends for this reason: the state is saved as soon as it is that of a committed step.
  std::optional<error> exit_reason_;
  bool prepares_checkpoints_;
};

} // namespace troupe::runtime
