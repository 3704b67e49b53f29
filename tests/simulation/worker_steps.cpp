#include "worker_model.hpp"

#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <bit>
#include <utility>

// What a worker of a simulation trains: its group, loops, evaluations and steps.

namespace troupe::simulation {

// -- the group --------------------------------------------------------------------------------------------------------

void worker_model::form_communicator() {
  if (auto reason = protocol_->abort_reason())
    return regroup(interrupted_, *reason);
  cut_off_ = false;
  ask(&worker_environment::send_to_collectives,
      exchange_request{world_.run(), generation(), 0, rank(), std::to_string(id_.value)});
  stand(standing::exchanging);
}

void worker_model::take(const answer<exchange_result>& message) {
  if (!is_awaited(message.number))
    return;
  if (const auto* staging = protocol_->staging()) {
    if (!message.value || cut_off_)
      return leave_stream(true);
    followed_ = world_.stream_of(staging->generation, staging->number, staging->sources);
    return stand(standing::following);
  }
  if (!message.value)
    return lose(interrupted_, message.value.error());
  group_ = world_.group_of(place(), next_.joiners, *message.value);
  cut_off_ = protocol_->abort_reason().has_value();
  if (group_)
    enter(collective::kind::connect, {});
}

void worker_model::enter(collective::kind what, collective mine) {
  mine.what = what;
  group_->enter(rank(), mine);
  switch (what) {
  case collective::kind::connect:
    return stand(standing::connecting);
  case collective::kind::reduce:
    return stand(standing::reducing);
  case collective::kind::evaluate:
    return stand(standing::evaluating);
  case collective::kind::barrier:
    return stand(standing::in_barrier);
  case collective::kind::share_evaluation:
    return stand(standing::sharing_evaluation);
  case collective::kind::transfer:
    return stand(standing::transferring);
  }
}

std::optional<bool> worker_model::leave() {
  auto seen = group_->look(rank());
  // An operation that is over when it is aborted ends either way.
  if (seen == data_plane::view::complete && (!cut_off_ || world_.random().one_in(2)))
    return true;
  if (cut_off_)
    return false;
  // The loss of a peer is noticed sooner or later.
  if (seen == data_plane::view::peer_missing && world_.random().one_in(3))
    return false;
  return std::nullopt;
}

void worker_model::leave_connect() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted_, {errc::aborted, "a peer is gone while connecting"});
  if (regrouping_)
    return share_last_evaluation();
  go_on();
}

// -- loops and evaluations --------------------------------------------------------------------------------------------

/// What the training function does up to its next loop.
void worker_model::go_to_next_loop() {
  for (const auto& loops = world_.training_function().loops; loop_ < loops.size(); ++loop_) {
    if (evaluations_before_ < loops[loop_].evaluations_before)
      return begin_evaluation();
    evaluations_before_ = 0;
    if (protocol_->enter_loop())
      return agree();
    stop_ = stop_ || protocol_->is_stopped();
  }
  finish({}, false);
}

void worker_model::leave_loop() {
  protocol_->end_steps();
  stop_giving();
  ++loop_;
  go_to_next_loop();
}

void worker_model::begin_evaluation() {
  if (leaves_)
    return finish({errc::timed_out, "the group that evaluates is gone"}, false);
  const auto plan = protocol_->plan_evaluation();
  if (const auto* known = std::get_if<actors::evaluation_known>(&plan)) {
    const auto before = loop_ == 0 ? 0 : world_.training_function().loops[loop_ - 1].end;
    check_evaluation(known->values, {std::max(restored_.value, before)});
    world_.knows_evaluation();
    ++evaluations_before_;
    return go_to_next_loop();
  }
  evaluation_ = std::get<actors::evaluate_now>(plan).number;
  collective mine;
  mine.sum = evaluated_shards(state_, own_shards());
  enter(collective::kind::evaluate, mine);
}

void worker_model::leave_evaluation() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted::evaluating, {errc::aborted, "the evaluation was cut off"});
  protocol_->on_evaluated(evaluation_, evaluation_from(group_->result(rank()).sum));
  end_evaluation();
}

void worker_model::end_evaluation() {
  protocol_->on_evaluation_returned();
  check_evaluation(protocol_->last_evaluation(), state_.step);
  // Each is done once, whoever was lost meanwhile.
  const auto& function = world_.training_function();
  auto due = protocol_->is_in_steps() ? std::uint64_t{0} : evaluations_before_ + std::uint64_t{1};
  for (std::size_t i = 0; i < loop_ + (protocol_->is_in_steps() ? 1 : 0); ++i)
    due += function.loops[i].evaluations_before;
  for (auto step = restored_.value + 1; step <= state_.step.value; ++step)
    due += function.evaluates_in({step}) ? 1 : 0;
  if (protocol_->evaluations() != due)
    world_.violates(*this,
                    "has done " + std::to_string(protocol_->evaluations()) + " evaluations of " + std::to_string(due));
  if (!protocol_->is_in_steps()) {
    ++evaluations_before_;
    return go_to_next_loop();
  }
  if (given_ && rank() == rank_id{0})
    given_->frames.push_back(staging_stream::evaluation{protocol_->last_evaluation()});
  protocol_->on_applied(state_.step);
  end_step();
}

void worker_model::check_evaluation(const std::vector<double>& values, step_id step) {
  if (values != undisturbed_evaluation(step))
    world_.violates(*this, "gets another result of an evaluation than the undisturbed run");
}

void worker_model::agree() {
  run_plan plan;
  plan.steps = world_.training_function().loops[loop_].end;
  plan.batch_samples = 1;
  plan.data_fingerprint = flaw_ == flaw::other_plan ? "other data" : "data";
  plan.state_bytes = 1;
  protocol_->complete(plan);
  ask(&worker_environment::send_to_driver, std::move(plan));
  stand(standing::agreeing);
}

void worker_model::take(const answer<plan_accepted>& message) {
  if (!is_awaited(message.number))
    return;
  if (!message.value)
    return lose(interrupted::agreeing, message.value.error());
  protocol_->on_plan_accepted();
  protocol_->begin_steps();
  if (!has_state())
    return regroup(interrupted::entering, {});
  go_on_to_next_step();
}

// -- a step -----------------------------------------------------------------------------------------------------------

void worker_model::fail(program::exception::place where, step_id step) {
  const auto* what = where == program::exception::place::before_reduction ? "out of range before reduction "
                                                                          : "out of range behind reduction ";
  auto reason = error{errc::user_error, what + std::to_string(step.value)};
  // The mutant makes a loss of its group of it.
  if (world_.defect() == mutation::takes_an_exception_for_a_loss)
    return finish(std::move(reason), true);
  if (where == program::exception::place::behind_barrier || !has_state() || committed() == restored_)
    return finish(std::move(reason), false);
  thrown_ = std::move(reason);
  ask(&worker_environment::send_to_driver, protocol_->report_throw(*thrown_));
  stand(standing::reporting);
}

shard_range worker_model::own_shards() const {
  if (world_.defect() != mutation::keeps_the_old_ownership || size_before_ == 0)
    return protocol_->shards();
  const auto rank = protocol_->rank().value;
  return rank < size_before_ ? collectives::owned_shards(shards, size_before_, rank) : shard_range{};
}

void worker_model::begin_step() {
  using place = program::exception::place;
  const auto step = step_id{state_.step.value + 1};
  if (!protocol_->begin_step(step))
    return regroup(interrupted::beginning, {});
  if (world_.throws(*this, step, place::before_reduction))
    return fail(place::before_reduction, step);
  collective mine;
  mine.sum = state_.contributions(step, own_shards());
  enter(collective::kind::reduce, mine);
}

void worker_model::leave_reduction() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted::step, {errc::aborted, "the reduction was cut off"});
  gradient_ = group_->result(rank()).sum;
  stand(standing::has_gradient);
}

void worker_model::enter_barrier() {
  const auto step = step_id{state_.step.value + 1};
  if (!protocol_->on_reduced(step))
    return regroup(interrupted::step, {errc::aborted, "given up after the reduction"});
  words_ = actors::worker_protocol::words_for(step, commands_.highest(), state_.value, 0, false);
  collective mine;
  std::ranges::copy(words_.values, mine.words.begin());
  if (world_.defect() == mutation::passes_without_the_barrier) {
    words_.values[actors::barrier_words::commands] = protocol_->commands_agreed();
    group_->enter(rank(), {collective::kind::barrier, 0, mine.words});
    return stand(standing::behind_barrier);
  }
  enter(collective::kind::barrier, mine);
}

void worker_model::leave_barrier() {
  auto done = leave();
  if (!done)
    return;
  if (!*done)
    return regroup(interrupted::step, {errc::aborted, "the barrier was cut off"});
  const auto& words = group_->result(rank()).words;
  std::copy_n(words.begin(), words_.values.size(), words_.values.begin());
  stand(standing::behind_barrier);
}

void worker_model::commit() {
  switch (protocol_->on_barrier({state_.step.value + 1}, words_)) {
  case actors::barrier_outcome::committed:
    break;
  case actors::barrier_outcome::fenced:
    return regroup(interrupted::step, {errc::aborted, "given up behind the barrier"});
  case actors::barrier_outcome::replicas_differ:
    return finish({errc::mismatch, "replicas differ"}, false);
  case actors::barrier_outcome::steps_differ:
    return finish({errc::mismatch, "the ranks are at different steps"}, false);
  }
  if (given_ && rank() == rank_id{0}) {
    given_->latest = committed();
    given_->frames.push_back(staging_stream::gradient{committed(), gradient_});
  }
  apply();
}

/// What the body does with the gradient.
void worker_model::apply() {
  using place = program::exception::place;
  const auto step = step_id{state_.step.value + 1};
  if (world_.throws(*this, step, place::behind_barrier))
    return fail(place::behind_barrier, step);
  const auto before = state_;
  state_.apply(step, gradient_);
  world_.has_applied(*this, before, state_);
  if (world_.training_function().evaluates_in(step))
    return begin_evaluation();
  protocol_->on_applied(step);
  end_step();
}

/// What the session does at the end of a step.
void worker_model::end_step() {
  if (leaves_)
    return save_last_copy();
  if (commands_.highest() < protocol_->commands_agreed()) {
    if (stands_ != standing::waiting_for_commands)
      stand(standing::waiting_for_commands);
    return;
  }
  std::vector<control_command> commands;
  if (const auto due = protocol_->due_commands())
    commands = commands_.take(due->after, due->up_to, std::chrono::milliseconds{0});
  stop_ = false;
  boundary_ = protocol_->on_boundary(commands, state_.step.value == world_.training_function().loops[loop_].end
                                                   ? actors::step_end::last_step
                                                   : actors::step_end::goes_on);
  act_at_boundary();
}

void worker_model::act_at_boundary() {
  while (!boundary_.empty()) {
    const auto action = boundary_.front();
    boundary_.erase(boundary_.begin());
    if (const auto* x = std::get_if<actors::consider_checkpoint>(&action.what);
        x != nullptr && (x->is_last || x->is_asked || state_.step.value % world_.checkpoint_every() == 0))
      return save();
    if (const auto* x = std::get_if<actors::stage_state>(&action.what))
      stage(*x);
    if (const auto* x = std::get_if<actors::regroup_here>(&action.what);
        x != nullptr && x->generation == generation()) {
      if (given_ && rank() == rank_id{0})
        given_->frames.push_back(
            staging_stream::end{state_.step, protocol_->commands_agreed(), protocol_->evaluations()});
      given_.reset();
      return regroup(interrupted::boundary, {});
    }
    stop_ = stop_ || std::holds_alternative<actors::stop_here>(action.what);
  }
  go_on_to_next_step();
}

void worker_model::save() {
  ask(&worker_environment::send_to_store, state_part{generation(), rank(), place().world_size, id_, state_});
  stand(standing::saving);
}

void worker_model::save_last_copy() {
  ask(&worker_environment::send_to_store, state_part{generation(), rank(), 1, id_, state_, true});
  stand(standing::saving);
}

void worker_model::take(const answer<checkpoint_outcome>& message) {
  if (!is_awaited(message.number))
    return;
  if (leaves_) {
    const auto reason = message.value ? *leaves_ : thrown_.value_or(message.value.error());
    return finish(reason, protocol_->is_loss_of_group(reason));
  }
  if (message.value)
    return act_at_boundary();
  lose(interrupted::saving, message.value.error());
}

void worker_model::stage(const actors::stage_state& what) {
  if (what.command.generation != generation() || !protocol_->is_present_loop(what.command.loop))
    return;
  stop_giving();
  given_ = world_.stream_of(generation(), what.number, place().world_size);
  given_->snapshots.emplace(rank(), state_);
  // Its stager's thread waits for the answer.
  world_.send_to_collectives(
      *this,
      request<exchange_request>{~std::uint64_t{0},
                                {world_.run(), generation(), what.number, rank(), std::to_string(id_.value),
                                 place().world_size + static_cast<std::uint32_t>(what.command.joiner_nodes.size())}});
}

/// Joiners find their group gone, sooner or later.
void worker_model::stop_giving() {
  if (auto broken = std::exchange(given_, nullptr))
    broken->is_broken = true;
}

void worker_model::go_on_to_next_step() {
  if (stop_ || state_.step.value >= world_.training_function().loops[loop_].end)
    return leave_loop();
  stand(standing::between_steps);
}

void worker_model::finish(error reason, bool needs_restart) {
  if (world_.is_tracing())
    world_.note(*this, "finishes at step " + std::to_string(state_.step.value) + ": " + reason.message);
  stop_giving();
  if (followed_)
    followed_->is_broken = true;
  followed_.reset();
  worker_finished message;
  message.run = world_.run();
  message.generation = generation();
  message.worker = id_;
  message.step = protocol_->step();
  if (reason.code == errc::none)
    message.state_sha256 =
        result_of(state_, world_.defect() == mutation::reports_the_state_of_others ? flaw::none : flaw_);
  message.reason = std::move(reason);
  message.stopped = stop_;
  message.needs_restart = needs_restart;
  has_failed_ = message.reason.code != errc::none;
  stand(standing::finished);
  world_.send_to_driver(*this, std::move(message));
}

} // namespace troupe::simulation
