#include "worker_model.hpp"

#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace troupe::simulation {

std::string_view to_string(standing x) noexcept {
  switch (x) {
  case standing::starting:
    return "starts";
  case standing::waiting_to_begin:
    return "is ready";
  case standing::exchanging:
    return "asks for addresses";
  case standing::connecting:
    return "connects";
  case standing::agreeing:
    return "tells its plan";
  case standing::evaluating:
    return "evaluates";
  case standing::between_steps:
    return "is between steps";
  case standing::reducing:
    return "reduces";
  case standing::has_gradient:
    return "has the gradient";
  case standing::in_barrier:
    return "is in the barrier";
  case standing::behind_barrier:
    return "is behind the barrier";
  case standing::waiting_for_commands:
    return "waits for commands";
  case standing::saving:
    return "saves";
  case standing::reporting:
    return "reports";
  case standing::sharing_evaluation:
    return "takes the result of an evaluation";
  case standing::transferring:
    return "transfers state";
  case standing::following:
    return "follows the others";
  case standing::finished:
    return "has finished";
  }
  return "?";
}

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

// -- the actor --------------------------------------------------------------------------------------------------------

const group_place& worker_model::place() const noexcept {
  static const group_place none;
  return protocol_ ? protocol_->place() : none;
}

void worker_model::begin(const begin_work& message) {
  if (protocol_)
    return;
  begin_training begin;
  begin.run = world_.run();
  begin.worker = id_;
  begin.place = message.place;
  begin.settings.shards = shards;
  begin.resume.step = restored_ = message.restored.step;
  begin.earlier_evaluations = message.earlier_evaluations;
  protocol_.emplace(begin);
  if (early_abort_)
    abort(*early_abort_);
  if (!has_state())
    return go_to_next_loop();
  state_ = message.restored;
  // An abort may have come first, and is found when the group is formed.
  form_communicator();
}

void worker_model::abort(const abort_training& message) {
  if (!protocol_) {
    early_abort_ = message;
    return;
  }
  // The mutant takes down what it has reached, and goes on.
  if (world_.defect() == mutation::passes_after_its_report && message.generation == generation() && has_state()) {
    if (!snapshot_)
      snapshot_ = worker_position::in_step{*protocol_->report({}).progress(),
                                           protocol_->reduced().value == protocol_->committed().value + 1};
    cut_off_ = true;
    return;
  }
  if (protocol_->on_abort(message) != actors::abort_effect::none)
    cut_off_ = true;
}

void worker_model::command(const control_command& message) {
  if (protocol_)
    commands_.add(message);
}

void worker_model::release() {
  // A thread of the user's may keep the process from ending: its node kills it in the end.
  if (world_.random().one_in(32))
    return;
  die();
  world_.process_ends(*this);
}

void worker_model::die() {
  lives_ = false;
  stop_giving();
  if (followed_)
    followed_->is_broken = true;
  if (group_)
    group_->close(rank(), world_.peers_are_noticed() ? &world_.random() : nullptr);
}

// -- the training thread ----------------------------------------------------------------------------------------------

bool worker_model::can_run() const {
  if (!lives_ || frozen_)
    return false;
  switch (stands_) {
  case standing::starting:
  case standing::between_steps:
  case standing::has_gradient:
  case standing::behind_barrier:
    return true;
  case standing::connecting:
  case standing::evaluating:
  case standing::reducing:
  case standing::in_barrier:
  case standing::sharing_evaluation:
  case standing::transferring: {
    if (cut_off_)
      return true;
    auto seen = group_->look(rank());
    return seen == data_plane::view::complete || (seen == data_plane::view::peer_missing && world_.peers_are_noticed());
  }
  case standing::waiting_for_commands:
    return commands_.highest() >= protocol_->commands_agreed();
  case standing::following:
    return cut_off_ || followed_->is_broken ||
           (followed_->has_snapshot() && (!has_snapshot_ || position_ < followed_->frames.size()));
  case standing::waiting_to_begin:
  case standing::exchanging:
  case standing::agreeing:
  case standing::saving:
  case standing::reporting:
  case standing::finished:
    return false;
  }
  return false;
}

void worker_model::run() {
  switch (stands_) {
  case standing::starting:
    return join_process();
  case standing::connecting:
    return leave_connect();
  case standing::evaluating:
    return leave_evaluation();
  case standing::between_steps:
    return begin_step();
  case standing::reducing:
    return leave_reduction();
  case standing::has_gradient:
    return enter_barrier();
  case standing::in_barrier:
    return leave_barrier();
  case standing::behind_barrier:
    return commit();
  case standing::waiting_for_commands:
    return end_step();
  case standing::sharing_evaluation:
    return leave_sharing_evaluation();
  case standing::transferring:
    return leave_transfer();
  case standing::following:
    return follow();
  case standing::waiting_to_begin:
  case standing::exchanging:
  case standing::agreeing:
  case standing::saving:
  case standing::reporting:
  case standing::finished:
    return;
  }
}

void worker_model::stand(standing where) {
  stands_ = where;
  ++progress_;
  world_.stands(*this, where);
}

template <class Message>
void worker_model::ask(void (worker_environment::*send)(worker_model&, packet), Message message) {
  awaited_ = ++requests_;
  (world_.*send)(*this, request<Message>{awaited_, std::move(message)});
}

bool worker_model::is_awaited(std::uint64_t number) {
  if (number != awaited_)
    return false;
  awaited_ = 0;
  return true;
}

void worker_model::join_process() {
  const auto reports_own_build = flaw_ == flaw::other_build && world_.defect() != mutation::reports_the_drivers_build;
  world_.send_to_driver(*this,
                        worker_ready{world_.run(), id_, id_.value + 1, "host", reports_own_build ? "another" : "build",
                                     flaw_ == flaw::other_numerics ? "other" : "same"});
  stand(standing::waiting_to_begin);
}

void worker_model::lose(interrupted where, const error& reason) {
  protocol_->is_loss_of_group(reason) ? regroup(where, reason) : finish(reason, false);
}

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
      *this, request<exchange_request>{~std::uint64_t{0},
                                       {world_.run(), generation(), what.number, rank(), std::to_string(id_.value),
                                        place().world_size + what.command.joiners}});
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
