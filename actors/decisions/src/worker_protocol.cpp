#include <troupe/actors/decisions/worker_protocol.hpp>

#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe::actors {

namespace {

/// A group that cannot be formed because a peer is unreachable is tried so many times.
constexpr std::uint32_t most_failed_formings = 5;

/// A joiner that needs no longer than this to come after is caught up: the members wait for it no longer than that.
constexpr auto caught_up_within = std::chrono::milliseconds{50};

} // namespace

worker_protocol::worker_protocol(const begin_training& begin)
    : run_(begin.run),
      worker_(begin.worker),
      number_of_shards_(begin.settings.shards),
      steps_{begin.resume.step, begin.resume.step, begin.resume.step},
      evaluations_(begin.earlier_evaluations),
      is_finished_(begin.resume.is_finished) {
  take(begin.place);
  if (place_.generation == generation_id{})
    state_ = preparing{};
  else
    state_ = between_steps{};
}

void worker_protocol::take(group_place place) {
  place_ = std::move(place);
  ownership_ = collectives::even_ownership(number_of_shards_, place_.world_size);
}

bool worker_protocol::has_state() const noexcept {
  return std::holds_alternative<computing>(state_) || std::holds_alternative<holding>(state_) ||
         std::holds_alternative<between_steps>(state_) || std::holds_alternative<fenced>(state_);
}

const staging_place* worker_protocol::staging() const noexcept {
  if (const auto* x = std::get_if<following>(&state_))
    return &x->group;
  if (const auto* x = std::get_if<close_behind>(&state_))
    return &x->group;
  if (const auto* x = std::get_if<arrived>(&state_))
    return &x->group;
  return nullptr;
}

step_id worker_protocol::step_under_way() const noexcept {
  if (const auto* x = std::get_if<computing>(&state_))
    return x->step;
  if (const auto* x = std::get_if<holding>(&state_))
    return x->step;
  return steps_.committed;
}

// -- loops and evaluations --------------------------------------------------------------------------------------------

bool worker_protocol::enter_loop() {
  ++loops_;
  // In the first loop of a process, what was restored is checked; it has no step to do.
  if (is_stopped() || (is_finished_ && loops_ > 1))
    return false;
  if (has_state() || !evaluations_.has_members_before(loops_))
    return true;
  evaluations_.forget_since_loop();
  return false;
}

void worker_protocol::complete(run_plan& plan) const {
  plan.run = run_;
  plan.worker = worker_;
  // A joiner may have had a place, and lost it before it got the state.
  plan.generation = has_state() ? place_.generation : generation_id{};
  plan.loop = loops_ == 0 ? 0 : loops_ - 1;
  plan.evaluations = evaluations_.since_loop();
}

void worker_protocol::on_plan_accepted() {
  if (loop_ == loop_stage::unplanned)
    loop_ = loop_stage::planned;
  evaluations_.forget_since_loop();
}

void worker_protocol::end_steps() noexcept {
  if (loop_ != loop_stage::stopped)
    loop_ = loop_stage::planned;
}

evaluation_plan worker_protocol::plan_evaluation() {
  if (follows())
    return evaluation_from_members{};
  if (has_state())
    return evaluate_now{evaluations_.count() + 1};
  return evaluation_known{evaluations_.take_from_members(loops_)};
}

void worker_protocol::on_evaluated(std::uint64_t number, std::vector<double> values) {
  evaluations_.add(number, std::move(values));
}

void worker_protocol::on_evaluation_returned() {
  if (!is_in_steps())
    evaluations_.on_returned();
}

// -- steps ------------------------------------------------------------------------------------------------------------

bool worker_protocol::begin_step(step_id step) {
  if (std::holds_alternative<fenced>(state_))
    return false;
  state_ = computing{step};
  return true;
}

bool worker_protocol::on_reduced(step_id step) {
  if (!std::holds_alternative<computing>(state_))
    return false;
  state_ = holding{step};
  steps_.reduced = step;
  return true;
}

state_comparison worker_protocol::comparison() const noexcept {
  // A single worker has no replica to differ from.
  return place_.world_size == 1 ? state_comparison::nothing : comparison_;
}

barrier_words worker_protocol::words_for(step_id step, std::uint64_t highest_command,
                                         std::optional<std::uint64_t> digest, std::uint64_t in_flight,
                                         bool owed) noexcept {
  // A value and its complement become maximum and minimum. A rank that compares nothing adds nothing to either.
  barrier_words words;
  words.values[barrier_words::commands] = highest_command;
  words.values[barrier_words::digest] = digest.value_or(0);
  words.values[barrier_words::inverted_digest] = digest ? ~*digest : 0;
  words.values[barrier_words::step] = step.value;
  words.values[barrier_words::inverted_step] = ~step.value;
  words.values[barrier_words::in_flight] = in_flight;
  words.values[barrier_words::owed] = owed ? 1 : 0;
  return words;
}

barrier_outcome worker_protocol::on_barrier(step_id step, const barrier_words& words) {
  const auto& values = words.values;
  comparison_ = state_comparison::slice;
  if (values[barrier_words::step] != ~values[barrier_words::inverted_step])
    return barrier_outcome::steps_differ;
  if (place_.world_size > 1 && values[barrier_words::digest] != ~values[barrier_words::inverted_digest])
    return barrier_outcome::replicas_differ;
  if (!std::holds_alternative<holding>(state_))
    return barrier_outcome::fenced;
  state_ = between_steps{};
  steps_.committed = step;
  commands_.agreed = values[barrier_words::commands];
  failed_formings_ = 0;
  return barrier_outcome::committed;
}

// -- boundaries -------------------------------------------------------------------------------------------------------

std::optional<command_range> worker_protocol::due_commands() const noexcept {
  if (commands_.agreed <= commands_.done)
    return std::nullopt;
  return command_range{commands_.done, commands_.agreed};
}

std::vector<boundary_action> worker_protocol::on_boundary(const std::vector<control_command>& commands, step_end end) {
  const auto finishes = end == step_end::finishes_run;
  const auto is_last = finishes || end == step_end::last_step;
  auto stops = end == step_end::stops;
  auto asked = false;
  auto regroups = false;
  std::optional<stage_state> stages;
  for (const auto& each : commands) {
    stops = stops || std::holds_alternative<stop_command>(each.what);
    asked = asked || std::holds_alternative<checkpoint_command>(each.what);
    if (const auto* x = std::get_if<regroup_command>(&each.what))
      regroups = x->generation == place_.generation;
    if (const auto* x = std::get_if<stage_command>(&each.what))
      stages = stage_state{each.sequence, *x};
    commands_.done = each.sequence;
  }
  // A run that ends by itself is not stopped.
  if (stops && !finishes)
    loop_ = loop_stage::stopped;
  is_finished_ = is_finished_ || finishes;
  std::vector<boundary_action> result;
  result.push_back({consider_checkpoint{
                        .is_last = is_last || stops, .is_asked = asked, .regroups = regroups, .finishes_run = finishes},
                    finishes  ? "the training function has finished the run"
                    : stops   ? "the run stops"
                    : is_last ? "it was the last step"
                    : asked   ? "a checkpoint was asked for"
                              : "the step is complete"});
  if (stages && !stops && !is_last)
    result.push_back({*stages, "joiners need the state"});
  // A worker that joins here would not know that no more steps follow.
  if (regroups && !stops && !finishes)
    result.push_back({regroup_here{place_.generation}, "members join or leave"});
  if (stops && !is_last)
    result.push_back({stop_here{}, "a stop was asked for"});
  return result;
}

// -- a lost group -----------------------------------------------------------------------------------------------------

bool worker_protocol::is_loss_of_group(const error& reason) const {
  if (reason.code == errc::aborted || reason.code == errc::stale_generation)
    return true;
  // The loss of a member does not explain these.
  if (reason.code == errc::mismatch || reason.code == errc::invalid_argument || reason.code == errc::user_error)
    return false;
  // Other errors after an abort are consequences of it.
  return abort_reason().has_value();
}

bool worker_protocol::may_form_again(const error& reason) {
  if (is_loss_of_group(reason))
    return true;
  // A peer that dies while it connects may be noticed before the driver reports it.
  return reason.code == errc::unreachable && ++failed_formings_ < most_failed_formings;
}

void worker_protocol::fence() {
  if (std::holds_alternative<computing>(state_) || std::holds_alternative<holding>(state_)) {
    state_ = fenced{};
    position_ = report_position::in_step;
  } else if (std::holds_alternative<between_steps>(state_)) {
    state_ = fenced{};
  }
}

void worker_protocol::begin_regroup() {
  fence();
}

void worker_protocol::begin_regroup_between_steps() {
  fence();
  if (position_ != report_position::in_step)
    position_ = report_position::between_steps;
}

regroup_report worker_protocol::report(error reason, std::vector<rank_id> unreachable) {
  const auto progress = worker_progress{steps_.committed, commands_.agreed, evaluations_.count()};
  auto result =
      regroup_report{run_, place_.generation, worker_, ++reports_, {}, std::move(reason), std::move(unreachable)};
  if (const auto* group = std::get_if<arrived>(&state_)) {
    result.generation = group->group.generation;
    result.position = worker_position::caught_up{progress, group->group.number};
  } else if (!has_state()) {
    result.position = worker_position::without_state{staging() != nullptr ? staging()->number : 0};
  } else if (position_ == report_position::in_step) {
    result.position = worker_position::in_step{progress, steps_.reduced.value == steps_.committed.value + 1};
  } else if (position_ == report_position::between_steps) {
    result.position = worker_position::between_steps{progress};
  } else {
    result.position = worker_position::elsewhere{progress};
  }
  return result;
}

regroup_report worker_protocol::report_throw(error reason) {
  fence();
  auto result = report(std::move(reason));
  result.position = worker_position::thrown{*result.progress()};
  return result;
}

worker_action worker_protocol::on_next(next_generation next) {
  if (std::holds_alternative<released>(next.what))
    return {leave_run{}, "the run goes on without this worker"};
  if (auto* last = std::get_if<save_and_leave>(&next.what)) {
    steps_.committed = std::max(steps_.committed, last->commit_point);
    return {save_last_copy{std::move(last->reason)}, "the run ends, and this worker has its state"};
  }
  if (auto* loop = std::get_if<loop_completed>(&next.what)) {
    evaluations_.add_loop_of_members(std::move(loop->evaluations));
    state_ = preparing{};
    position_ = report_position::elsewhere;
    return {skip_loop_body{}, "the members have completed this loop"};
  }
  if (auto* group = std::get_if<staging_place>(&next.what)) {
    state_ = following{*group};
    position_ = report_position::elsewhere;
    return {follow_members{std::move(*group)}, "the members give the state while they train on"};
  }
  return adopt(std::move(std::get<member_place>(next.what)));
}

worker_action worker_protocol::adopt(member_place next) {
  steps_.committed = std::max(steps_.committed, next.commit_point);
  steps_.reduced = steps_.committed;
  commands_.agreed = next.commands_agreed;
  auto with_state = has_state();
  if (!with_state) {
    // A joiner begins where the members are: it has or gets their state.
    with_state = has_caught_up() && std::ranges::find(next.joiners, next.place.rank) == next.joiners.end();
    steps_.applied = steps_.committed;
    commands_.done = commands_.agreed;
    if (!with_state)
      evaluations_.skip_to(next.evaluations);
  }
  // The driver chooses what to compare, because only it knows which members were behind.
  comparison_ = next.comparison;
  take(next.place);
  if (position_ == report_position::in_step)
    position_ = report_position::elsewhere;
  if (with_state)
    state_ = between_steps{};
  else
    state_ = receiving{};
  if (auto reason = abort_reason()) {
    fence();
    return {report_again{}, "generation " + fmt::to_string(place_.generation.value) + " is over: " + reason->message};
  }
  return {form_group{std::move(next)}, place_.reason};
}

void worker_protocol::on_state_received() {
  if (std::holds_alternative<receiving>(state_))
    state_ = between_steps{};
  if (abort_reason())
    fence();
}

void worker_protocol::on_formed() {
  position_ = report_position::elsewhere;
}

error worker_protocol::why_it_ends(const error& otherwise) const {
  return aborted_ && otherwise.code == errc::aborted ? aborted_->reason : otherwise;
}

// -- a joiner that follows the members --------------------------------------------------------------------------------

void worker_protocol::on_staged_state(step_id step) {
  steps_.applied = steps_.committed = steps_.reduced = step;
}

std::optional<caught_up> worker_protocol::judge_progress(step_id next, step_id latest,
                                                         std::optional<std::chrono::nanoseconds> repeat_took) {
  auto* group = std::get_if<following>(&state_);
  if (group == nullptr)
    return std::nullopt;
  const auto behind = latest.value - std::min(latest, next).value;
  if (behind > 1 && !(repeat_took && *repeat_took * behind <= caught_up_within))
    return std::nullopt;
  auto place = group->group;
  state_ = close_behind{place};
  return caught_up{run_, worker_, place.generation, place.number, next};
}

void worker_protocol::on_repeated(step_id step) {
  steps_.applied = steps_.committed = steps_.reduced = step;
}

expected<void> worker_protocol::on_end_of_staging(step_id boundary, std::uint64_t commands_agreed,
                                                  std::uint64_t evaluations) {
  if (boundary != steps_.applied)
    return fail(errc::internal, fmt::format("the members go on after step {}, and this joining worker has come to step "
                                            "{}: an invariant of Troupe is broken",
                                            boundary, steps_.applied));
  commands_.agreed = commands_agreed;
  evaluations_.skip_to(evaluations);
  state_ = arrived{*staging()};
  position_ = report_position::between_steps;
  return {};
}

// -- aborts -----------------------------------------------------------------------------------------------------------

abort_effect worker_protocol::on_abort(const abort_training& message) {
  if (message.generation < place_.generation)
    return abort_effect::none;
  // Keep the first reason for each generation.
  if (!aborted_ || aborted_->generation < message.generation)
    aborted_ = aborted_generation{message.generation, message.reason};
  if (follows() && message.generation >= staging()->generation)
    return abort_effect::ends_staging;
  // A joiner without a place receives the aborts of the members' generations, too.
  if (place_.generation == generation_id{})
    return abort_effect::none;
  // An abort of a later generation implies that this one is over.
  fence();
  return abort_effect::ends_group;
}

std::optional<error> worker_protocol::abort_reason() const {
  if (!aborted_ || aborted_->generation < place_.generation)
    return std::nullopt;
  return aborted_->reason;
}

std::optional<error> worker_protocol::staging_abort_reason() const {
  if (!aborted_ || staging() == nullptr || aborted_->generation < staging()->generation)
    return std::nullopt;
  return aborted_->reason;
}

} // namespace troupe::actors
