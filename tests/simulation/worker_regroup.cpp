#include "worker_model.hpp"

#include <algorithm>
#include <bit>
#include <utility>

// A worker of a simulation whose group is lost, and a joiner that follows.

namespace troupe::simulation {

namespace {

std::string describe(const regroup_report& x) {
  if (x.progress() == nullptr)
    return ", without state";
  const auto* step = std::get_if<worker_position::in_step>(&x.position);
  return ", committed " + std::to_string(x.progress()->committed.value) +
         (step != nullptr && step->holds_gradient                  ? ", holds the next"
          : step == nullptr && !x.is<worker_position::elsewhere>() ? ", between steps"
                                                                   : "");
}

} // namespace

// -- the group is lost ------------------------------------------------------------------------------------------------

void worker_model::regroup(interrupted what, const error& reason) {
  interrupted_ = what;
  regrouping_ = true;
  report(reason);
}

void worker_model::report(const error& reason) {
  if (interrupted_ == interrupted::boundary)
    protocol_->begin_regroup_between_steps();
  else
    protocol_->begin_regroup();
  if (world_.defect() != mutation::goes_on_giving_after_a_loss)
    stop_giving();
  auto unreachable = group_ ? world_.unreachable_from(*this) : std::vector<rank_id>{};
  // Over shared memory, what it has written stays.
  if (group_ && world_.peers_are_noticed())
    group_->close(rank(), &world_.random());
  group_.reset();
  auto message = protocol_->report(reason, std::move(unreachable));
  if (auto before = std::exchange(snapshot_, std::nullopt))
    message.position = *before;
  if (world_.is_tracing())
    world_.note(*this, "reports generation " + std::to_string(message.generation.value) + describe(message) + ": " +
                           reason.message);
  ask(&worker_environment::send_to_driver, std::move(message));
  stand(standing::reporting);
}

void worker_model::take(const answer<next_generation>& message) {
  if (!is_awaited(message.number))
    return;
  if (!message.value && thrown_)
    return finish(*thrown_, false);
  if (!message.value)
    return finish(message.value.error(), protocol_->is_loss_of_group(message.value.error()));
  auto next = *message.value;
  const auto had_state = has_state();
  const auto* place = std::get_if<member_place>(&next.what);
  // The mutant does not apply what it holds.
  if (world_.defect() == mutation::drops_the_held_gradient && had_state && place != nullptr)
    std::get<member_place>(next.what).commit_point = committed();
  if (had_state)
    size_before_ = protocol_->place().world_size;
  auto action = protocol_->on_next(std::move(next));
  if (std::holds_alternative<actors::leave_run>(action.what))
    return finish({errc::stopped, "not needed any more"}, false);
  if (const auto* last = std::get_if<actors::save_last_copy>(&action.what)) {
    leaves_ = last->reason;
    if (protocol_->step() == committed())
      return save_last_copy();
    // The step has a gradient, and is applied first. The state in the middle of a body cannot be saved.
    return interrupted_ == interrupted::step ? apply() : finish({errc::timed_out, "the body has not ended"}, false);
  }
  if (std::holds_alternative<actors::skip_loop_body>(action.what)) {
    world_.skips_loop(*this);
    if (world_.defect() == mutation::stays_in_a_completed_loop)
      return report({});
    regrouping_ = false;
    return leave_loop();
  }
  if (const auto* group = std::get_if<actors::follow_members>(&action.what)) {
    has_snapshot_ = awaits_evaluation_ = false;
    position_ = 0;
    cut_off_ = protocol_->staging_abort_reason().has_value();
    ask(&worker_environment::send_to_collectives,
        exchange_request{world_.run(), group->group.generation, group->group.number, group->group.rank,
                         std::to_string(id_.value), group->group.sources + group->group.joiners});
    return stand(standing::exchanging);
  }
  if (!had_state) {
    if (has_state() && committed() != state_.step)
      world_.violates(*this, "has followed the others to another step than they are at");
    state_.step = committed();
  }
  snapshot_.reset();
  if (const auto* form = std::get_if<actors::form_group>(&action.what)) {
    next_ = form->place;
    return form_communicator();
  }
  report({});
}

// -- a joiner follows -----------------------------------------------------------------------------------------------

void worker_model::follow() {
  auto& stream = *followed_;
  const auto nothing_comes = !stream.has_snapshot() || (has_snapshot_ && position_ == stream.frames.size());
  if (cut_off_ || (stream.is_broken && (nothing_comes || world_.random().one_in(3))))
    return leave_stream(true);
  if (!has_snapshot_) {
    has_snapshot_ = true;
    state_ = stream.snapshots.begin()->second;
    protocol_->on_staged_state(state_.step);
    for (const auto& [rank, each] : stream.snapshots)
      if (each != state_)
        world_.violates(*this, "is given shares of different states");
    return;
  }
  const auto next = stream.frames[position_++];
  if (std::holds_alternative<staging_stream::evaluation>(next) != awaits_evaluation_)
    return world_.violates(*this, "is given something else than what its body asks for");
  if (const auto* end = std::get_if<staging_stream::end>(&next)) {
    if (auto there = protocol_->on_end_of_staging(end->step, end->commands_agreed, end->evaluations); !there)
      world_.violates(*this, "is to be one of the others at another step than it is at");
    return leave_stream(false);
  }
  if (const auto* evaluation = std::get_if<staging_stream::evaluation>(&next)) {
    check_evaluation(evaluation->values, state_.step);
    world_.knows_evaluation();
    protocol_->on_evaluated(protocol_->evaluations(), evaluation->values);
    awaits_evaluation_ = false;
    return protocol_->on_repeated(state_.step);
  }
  repeat(std::get<staging_stream::gradient>(next), stream.latest);
}

void worker_model::repeat(const staging_stream::gradient& next, step_id latest) {
  using place = program::exception::place;
  if (next.step.value != state_.step.value + 1)
    return world_.violates(*this, "is given the gradient of another step");
  if (world_.throws(*this, next.step, place::before_reduction))
    return fail(place::before_reduction, next.step);
  if (auto told = protocol_->judge_progress(next.step, latest, std::nullopt))
    world_.send_to_driver(*this, *told);
  if (world_.throws(*this, next.step, place::behind_barrier))
    return fail(place::behind_barrier, next.step);
  const auto before = state_;
  state_.apply(next.step, next.value);
  world_.has_applied(*this, before, state_);
  awaits_evaluation_ = world_.training_function().evaluates_in(next.step);
  if (!awaits_evaluation_)
    protocol_->on_repeated(next.step);
}

void worker_model::leave_stream(bool is_lost) {
  // The mutant takes itself for one of the members.
  if (is_lost && world_.defect() == mutation::takes_a_lost_source_for_the_end && has_snapshot_)
    is_lost = !protocol_->on_end_of_staging(state_.step, protocol_->commands_agreed(), protocol_->evaluations());
  // The others find that one of the group is gone.
  if (is_lost && followed_)
    followed_->is_broken = true;
  followed_.reset();
  report({});
}

void worker_model::share_last_evaluation() {
  // The mutant keeps its own count.
  if (!next_.evaluation_source || world_.defect() == mutation::ignores_shared_evaluations)
    return exchange_state();
  collective mine;
  if (rank() == *next_.evaluation_source)
    mine.words[0] = std::bit_cast<std::uint64_t>(protocol_->last_evaluation().front());
  enter(collective::kind::share_evaluation, mine);
}

void worker_model::leave_sharing_evaluation() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted_, {errc::aborted, "the result of the evaluation was cut off"});
  protocol_->on_evaluated(next_.evaluations, {std::bit_cast<double>(group_->result(rank()).words[0])});
  exchange_state();
}

void worker_model::exchange_state() {
  if (next_.joiners.empty())
    return go_on();
  collective mine;
  mine.words = {state_.value, ~state_.value, state_.step.value, ~state_.step.value, 0};
  enter(collective::kind::transfer, mine);
}

void worker_model::leave_transfer() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted_, {errc::aborted, "the transfer of state was cut off"});
  if (!has_state()) {
    const auto& words = group_->result(rank()).words;
    if (words[0] != ~words[1] || words[2] != ~words[3])
      return finish({errc::mismatch, "the senders of the state differ"}, false);
    // Its step is what the decision says: the state carries none of its own.
    state_.value = words[0];
    protocol_->on_state_received();
  }
  go_on();
}

/// The new group is there.
void worker_model::go_on() {
  regrouping_ = false;
  protocol_->on_formed();
  switch (interrupted_) {
  case interrupted::joining:
    return go_to_next_loop();
  case interrupted::agreeing:
    return agree();
  case interrupted::evaluating:
    return protocol_->is_evaluated(evaluation_) ? end_evaluation() : begin_evaluation();
  case interrupted::beginning:
  case interrupted::entering:
    return go_on_to_next_step();
  case interrupted::boundary:
    return act_at_boundary();
  case interrupted::saving:
    return save();
  case interrupted::step:
    // Another member committed: what was reduced counts. Otherwise the step is computed again.
    return committed() > state_.step ? apply() : go_on_to_next_step();
  }
}

} // namespace troupe::simulation
