#include "worker_model.hpp"

#include <algorithm>
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
  case standing::transferring:
    return "transfers state";
  case standing::following:
    return "follows the others";
  case standing::finished:
    return "has finished";
  }
  return "?";
}

// -- the actor --------------------------------------------------------------------------------------------------------

void worker_model::begin(const begin_work& message) {
  if (std::exchange(begun_, true))
    return;
  place_.place = message.place;
  has_state_ = message.place.generation != generation_id{};
  committed_ = reduced_ = message.restored.step;
  if (early_abort_)
    abort(*early_abort_);
  if (!has_state_)
    return agree();
  state_ = message.restored;
  word_.restart(place_.place.generation, committed_);
  // An abort may have come first, and is found when the group is formed.
  form_communicator();
}

void worker_model::abort(const abort_training& message) {
  if (!begun_) {
    early_abort_ = message;
    return;
  }
  if (message.generation < generation())
    return;
  if (staging_.number > 0 && message.generation >= staging_.generation)
    cut_off_ = true;
  aborted_ = std::max(aborted_, message.generation);
  if (message.generation != generation())
    return;
  if (world_.defect() == mutation::passes_after_its_report) {
    if (!snapshot_ && has_state_) {
      snapshot_.emplace();
      snapshot_->committed = committed_;
      snapshot_->holds_next = reduced_.value == committed_.value + 1;
      snapshot_->commands_agreed = commands_agreed_;
    }
  } else {
    word_.freeze();
  }
  cut_off_ = true;
}

void worker_model::command(const control_command& message) {
  if (begun_)
    commands_.add(message);
}

void worker_model::release() {
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
  case standing::reducing:
  case standing::in_barrier:
  case standing::transferring: {
    if (cut_off_)
      return true;
    auto seen = group_->look(rank());
    return seen == data_plane::view::complete || (seen == data_plane::view::peer_missing && world_.peers_are_noticed());
  }
  case standing::waiting_for_commands:
    return commands_.highest() >= commands_agreed_;
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
  case standing::between_steps:
    return begin_step();
  case standing::reducing:
    return leave_reduction();
  case standing::has_gradient:
    return enter_barrier();
  case standing::in_barrier:
    return leave_barrier();
  case standing::behind_barrier:
    return pass();
  case standing::waiting_for_commands:
    return end_step();
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
  world_.stands(*this, where);
}

template <class Message>
void worker_model::ask(void (surroundings::*send)(worker_model&, packet), Message message) {
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
  world_.send_to_driver(*this, worker_ready{world_.run(), id_, id_.value + 1, "host", "build", {}});
  stand(standing::waiting_to_begin);
}

bool worker_model::is_loss_of_group(const error& reason) const {
  if (reason.code == errc::aborted || reason.code == errc::stale_generation)
    return true;
  if (reason.code == errc::mismatch || reason.code == errc::invalid_argument || reason.code == errc::user_error)
    return false;
  return aborted_ >= generation();
}

// -- the group --------------------------------------------------------------------------------------------------------

void worker_model::form_communicator() {
  if (aborted_ >= generation())
    return regroup(interrupted_, {errc::aborted, "aborted before it was formed"});
  ask(&surroundings::send_to_collectives,
      exchange_request{world_.run(), generation(), 0, rank(), std::to_string(id_.value)});
  stand(standing::exchanging);
}

void worker_model::take(const answer<exchange_result>& message) {
  if (!is_awaited(message.number))
    return;
  if (staging_.number > 0) {
    if (!message.value || cut_off_)
      return leave_stream(false);
    followed_ = world_.stream_of(staging_.generation, staging_.number, staging_.sources);
    return stand(standing::following);
  }
  if (!message.value)
    return is_loss_of_group(message.value.error()) ? regroup(interrupted_, message.value.error())
                                                   : finish(message.value.error(), false);
  group_ = world_.group_of(place_, *message.value);
  cut_off_ = aborted_ >= generation();
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
  case collective::kind::barrier:
    return stand(standing::in_barrier);
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
    return exchange_state();
  go_on();
}

void worker_model::agree() {
  run_plan plan;
  plan.run = world_.run();
  plan.worker = id_;
  plan.generation = generation();
  plan.steps = world_.steps();
  plan.batch_samples = 1;
  plan.state_bytes = 1;
  ask(&surroundings::send_to_driver, std::move(plan));
  stand(standing::agreeing);
}

void worker_model::take(const answer<plan_accepted>& message) {
  if (!is_awaited(message.number))
    return;
  if (!message.value)
    return is_loss_of_group(message.value.error()) ? regroup(interrupted::agreeing, message.value.error())
                                                   : finish(message.value.error(), false);
  agreed_ = true;
  if (!has_state_)
    return regroup(interrupted::entering, {});
  go_on_to_next_step();
}

// -- a step -----------------------------------------------------------------------------------------------------------

void worker_model::begin_step() {
  const auto step = step_id{state_.step.value + 1};
  if (!word_.begin(generation(), step))
    return regroup(interrupted::beginning, {});
  collective mine;
  mine.sum = state_.contributions(step, place_.place.ownership[rank().value]);
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
  if (!word_.reduced())
    return regroup(interrupted::step, {errc::aborted, "given up after the reduction"});
  reduced_ = step;
  collective mine;
  mine.words = {commands_.highest(), state_.value, ~state_.value, step.value, ~step.value};
  if (world_.defect() == mutation::passes_without_the_barrier) {
    words_agreed_ = commands_agreed_;
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
  if (words[3] != ~words[4])
    return finish({errc::mismatch, "the ranks are at different steps, " + std::to_string(~words[4]) + " and " +
                                       std::to_string(words[3])},
                  false);
  if (words[1] != ~words[2])
    return finish({errc::mismatch, "replicas differ"}, false);
  words_agreed_ = words[0];
  stand(standing::behind_barrier);
}

void worker_model::pass() {
  if (!word_.pass())
    return regroup(interrupted::step, {errc::aborted, "given up behind the barrier"});
  committed_ = {state_.step.value + 1};
  commands_agreed_ = words_agreed_;
  if (given_ && rank() == rank_id{0})
    given_->frames.push_back({true, committed_, gradient_});
  apply();
}

void worker_model::apply() {
  const auto before = state_;
  state_.apply({state_.step.value + 1}, gradient_);
  world_.has_applied(*this, before, state_);
  end_step();
}

/// `end_of_step`, up to the checkpoint.
void worker_model::end_step() {
  if (commands_.highest() < commands_agreed_) {
    if (stands_ != standing::waiting_for_commands)
      stand(standing::waiting_for_commands);
    return;
  }
  auto save_now = state_.step.value == world_.steps() || state_.step.value % world_.checkpoint_every() == 0;
  stop_ = false;
  regroup_in_ = {};
  if (commands_agreed_ > commands_done_) {
    for (const auto& each : commands_.take(commands_done_, commands_agreed_, std::chrono::milliseconds{0})) {
      stop_ = stop_ || each.kind == command_kind::stop;
      save_now = save_now || each.kind == command_kind::stop || each.kind == command_kind::checkpoint;
      if (each.kind == command_kind::regroup)
        regroup_in_ = each.generation;
      if (each.kind == command_kind::stage)
        stage_asked_ = each;
    }
    commands_done_ = commands_agreed_;
  }
  if (save_now)
    save();
  else
    settle_boundary();
}

void worker_model::save() {
  ask(&surroundings::send_to_store, state_part{generation(), rank(), place_.place.world_size, id_, state_});
  stand(standing::saving);
}

void worker_model::take(const answer<checkpoint_outcome>& message) {
  if (!is_awaited(message.number))
    return;
  if (message.value)
    return settle_boundary();
  if (!is_loss_of_group(message.value.error()))
    return finish(message.value.error(), false);
  regroup(interrupted::saving, message.value.error());
}

void worker_model::settle_boundary() {
  const auto staging = std::exchange(stage_asked_, {});
  if (!stop_ && state_.step.value < world_.steps() && staging.sequence > 0 && staging.generation == generation()) {
    stop_giving();
    given_ = world_.stream_of(generation(), staging.sequence, place_.place.world_size);
    given_->snapshots.emplace(rank(), state_);
    // Its stager's thread waits for the answer.
    world_.send_to_collectives(
        *this, request<exchange_request>{~std::uint64_t{0},
                                         {world_.run(), generation(), staging.sequence, rank(),
                                          std::to_string(id_.value), place_.place.world_size + staging.joiners}});
  }
  if (!stop_ && regroup_in_ == generation()) {
    if (given_ && rank() == rank_id{0})
      given_->frames.push_back({false, state_.step, commands_agreed_});
    given_.reset();
    between_steps_ = true;
    return regroup(interrupted::boundary, {});
  }
  go_on_to_next_step();
}

/// Joiners find their group gone, sooner or later.
void worker_model::stop_giving() {
  if (auto broken = std::exchange(given_, nullptr))
    broken->is_broken = true;
}

void worker_model::go_on_to_next_step() {
  if (stop_ || state_.step.value >= world_.steps())
    return finish({}, false);
  stand(standing::between_steps);
}

void worker_model::finish(error reason, bool needs_restart) {
  if (world_.is_tracing())
    world_.note(*this, "finishes at step " + std::to_string(state_.step.value) + ": " + reason.message);
  stop_giving();
  worker_finished message;
  message.run = world_.run();
  message.generation = generation();
  message.worker = id_;
  message.step = state_.step;
  if (reason.code == errc::none)
    message.state_sha256 = std::to_string(state_.value);
  message.reason = std::move(reason);
  message.stopped = stop_ && state_.step.value < world_.steps();
  message.needs_restart = needs_restart;
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
  word_.freeze();
  if (world_.defect() != mutation::goes_on_giving_after_a_loss)
    stop_giving();
  // Over shared memory, what it has written stays.
  if (group_ && world_.peers_are_noticed())
    group_->close(rank(), &world_.random());
  group_.reset();
  regroup_report message;
  message.run = world_.run();
  message.generation = caught_up_ ? staging_.generation : generation();
  message.worker = id_;
  message.has_state = has_state_ || caught_up_;
  message.between_steps = between_steps_;
  message.in_step = has_state_ && word_.load().phase == runtime::step_phase::frozen;
  message.committed = committed_;
  message.holds_next = reduced_.value == committed_.value + 1;
  message.commands_agreed = commands_agreed_;
  message.staging = staging_.number;
  message.reason = reason;
  if (auto before = std::exchange(snapshot_, std::nullopt)) {
    message.committed = before->committed;
    message.holds_next = before->holds_next;
    message.commands_agreed = before->commands_agreed;
  }
  if (world_.is_tracing())
    world_.note(*this, "reports generation " + std::to_string(message.generation.value) + ", committed " +
                           std::to_string(message.committed.value) + (message.holds_next ? ", holds the next" : "") +
                           (message.between_steps ? ", between steps" : "") +
                           (message.has_state ? "" : ", without state") + ": " + reason.message);
  ask(&surroundings::send_to_driver, std::move(message));
  stand(standing::reporting);
}

void worker_model::take(const answer<next_generation>& message) {
  if (!is_awaited(message.number))
    return;
  if (!message.value)
    return finish(message.value.error(), is_loss_of_group(message.value.error()));
  if (message.value->released)
    return finish({errc::stopped, "not needed any more"}, false);
  staging_ = message.value->staging;
  if (staging_.number > 0) {
    cut_off_ = has_snapshot_ = told_caught_up_ = caught_up_ = between_steps_ = false;
    position_ = 0;
    ask(&surroundings::send_to_collectives,
        exchange_request{world_.run(), staging_.generation, staging_.number, staging_.rank, std::to_string(id_.value),
                         staging_.sources + staging_.joiners});
    return stand(standing::exchanging);
  }
  adopt(*message.value);
  if (aborted_ < generation())
    return form_communicator();
  word_.freeze();
  report({});
}

void worker_model::adopt(const next_generation& next) {
  if (world_.defect() != mutation::drops_the_held_gradient || !has_state_)
    committed_ = std::max(committed_, next.commit_point);
  reduced_ = committed_;
  commands_agreed_ = next.commands_agreed;
  if (!has_state_) {
    has_state_ = caught_up_ && std::ranges::find(next.joiners, next.place.rank) == next.joiners.end();
    if (has_state_ && committed_ != state_.step)
      world_.violates(*this, "has followed the others to another step than they are at");
    state_.step = committed_;
    commands_done_ = commands_agreed_;
    caught_up_ = false;
  }
  place_ = next;
  cut_off_ = false;
  snapshot_.reset();
  word_.restart(generation(), committed_);
}

// -- a joiner follows -----------------------------------------------------------------------------------------------

void worker_model::follow() {
  auto& stream = *followed_;
  const auto nothing_comes = !stream.has_snapshot() || (has_snapshot_ && position_ == stream.frames.size());
  if (cut_off_ || (stream.is_broken && (nothing_comes || world_.random().one_in(3))))
    return leave_stream(false);
  if (!has_snapshot_) {
    has_snapshot_ = true;
    state_ = stream.snapshots.begin()->second;
    committed_ = reduced_ = state_.step;
    for (const auto& [rank, each] : stream.snapshots)
      if (each != state_)
        world_.violates(*this, "is given shares of different states");
    return;
  }
  const auto next = stream.frames[position_++];
  if (!next.is_gradient) {
    if (next.step != state_.step)
      world_.violates(*this, "is to be one of the others at another step than it is at");
    commands_agreed_ = next.value;
    return leave_stream(true);
  }
  if (next.step.value != state_.step.value + 1)
    return world_.violates(*this, "is given the gradient of another step");
  const auto before = state_;
  state_.apply(next.step, next.value);
  committed_ = reduced_ = next.step;
  world_.has_applied(*this, before, state_);
  const auto& last = stream.frames.back();
  if (last.step.value <= next.step.value + 1 && !std::exchange(told_caught_up_, true))
    world_.send_to_driver(*this, caught_up{world_.run(), id_, staging_.generation, staging_.number, next.step});
}

void worker_model::leave_stream(bool is_caught_up) {
  caught_up_ = is_caught_up || (world_.defect() == mutation::takes_a_lost_source_for_the_end && has_snapshot_);
  between_steps_ = caught_up_;
  // The others find that one of the group is gone.
  if (!caught_up_ && followed_)
    followed_->is_broken = true;
  followed_.reset();
  report({});
}

void worker_model::exchange_state() {
  if (place_.joiners.empty())
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
  if (!has_state_) {
    const auto& words = group_->result(rank()).words;
    if (words[0] != ~words[1] || words[2] != ~words[3])
      return finish({errc::mismatch, "the senders of the state differ"}, false);
    // Its step is what the decision says: the state carries none of its own.
    state_.value = words[0];
    has_state_ = true;
  }
  go_on();
}

/// The new group is there.
void worker_model::go_on() {
  regrouping_ = false;
  switch (interrupted_) {
  case interrupted::joining:
  case interrupted::agreeing:
    return agree();
  case interrupted::beginning:
    return go_on_to_next_step();
  case interrupted::entering:
  case interrupted::boundary:
    between_steps_ = false;
    return go_on_to_next_step();
  case interrupted::saving:
    return save();
  case interrupted::step:
    // Somebody has committed: what was reduced counts. Else the step is computed again.
    return committed_ > state_.step ? apply() : go_on_to_next_step();
  }
}

} // namespace troupe::simulation
