#include <troupe/actors/decisions/run_attempt.hpp>

#include <troupe/actors/decisions/joiner_deadlines.hpp>
#include <troupe/actors/decisions/partition.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace troupe::actors {

namespace {

bool waits(const worker_record& x) {
  return x.is<standing::waiting>();
}

/// Whether it may be a member of the next generation, as far as is known.
bool is_expected(const worker_record& x) {
  return x.is_active() || waits(x);
}

formed_member describe_member(const worker_record& x) {
  return {x.place, x.came_after, history_of(x.stands).loop};
}

} // namespace

run_attempt::run_attempt(settings config, run_course course, step_id first_step)
    : config_(std::move(config)),
      course_(std::move(course)),
      silent_(config_.failure),
      began_at_(first_step),
      furthest_(first_step) {}

run_attempt::run_attempt(settings config, run_course course, const control_state& from, run_time now)
    : config_(std::move(config)),
      number_(from.attempt),
      generation_(from.generation),
      course_(std::move(course)),
      commands_(from.commands),
      outstanding_(from.outstanding),
      numerics_(from.numerics),
      formed_(from.members),
      has_formed_(false),
      silent_(config_.failure),
      began_at_(from.began_at),
      furthest_(from.began_at) {
  course_.workers = from.workers;
  course_.asked = from.asked;
  for (const auto& plan : from.plans)
    plans_.add(plan);
  for (const auto& each : from.members) {
    workers_.add(each.place, began_at_, now);
    auto& who = *workers_.find(each.place.worker);
    who.stands = standing::active{.plan = {}, .report = {}, .history = {.since = now, .loop = each.loop}};
    who.came_after = each.came_after;
  }
  state_.begin_training();
}

control_state run_attempt::state_to_keep() const {
  auto result = control_state{number_,      generation_,     began_at_,     formed_, plans_.all(), commands_,
                              outstanding_, course_.workers, course_.asked, {},      numerics_};
  if (!is_regrouping())
    return result;
  // Written early, with the members expected now, so that it is durable when the next generation forms.
  ++result.generation.value;
  result.members.clear();
  for (const auto& [id, who] : workers_)
    if (is_expected(who))
      result.members.push_back(describe_member(who));
  return result;
}

bool run_attempt::is_kept_in(const control_state& kept) const {
  const auto generation = generation_.value + (is_regrouping() ? 1 : 0);
  // Plans and outstanding commands only grow as long as the other numbers stay.
  if (kept.attempt != number_ || kept.generation.value != generation || kept.began_at != began_at_ ||
      kept.commands != commands_ || kept.outstanding.size() != outstanding_.size() ||
      kept.plans.size() != plans_.all().size() || kept.workers != course_.workers || kept.asked != course_.asked ||
      kept.numerics != numerics_)
    return false;
  if (!is_regrouping())
    return kept.members == formed_;
  auto left = std::span{kept.members};
  for (const auto& [id, who] : workers_) {
    if (!is_expected(who))
      continue;
    if (left.empty() || left.front() != describe_member(who))
      return false;
    left = left.subspan(1);
  }
  return left.empty();
}

run_attempt run_attempt::next() const {
  auto result = run_attempt{config_, course_, began_at_};
  result.number_ = number_ + 1;
  result.generation_.value = generation_.value + 1;
  result.furthest_ = furthest();
  result.silent_ = silent_;
  return result;
}

void run_attempt::begin_at(step_id first_step) {
  began_at_ = first_step;
  // The steps since the checkpoint are computed again: measure progress from here.
  furthest_ = first_step;
}

void run_attempt::note_progress(worker_record& who, step_id step) {
  who.note_applied(step);
  furthest_ = std::max(furthest_, step);
}

void run_attempt::note_numerics(worker_record& who, const std::string& numerics) {
  who.numerics = numerics;
  if (numerics_.empty())
    numerics_ = numerics;
}

run_action run_attempt::command(decltype(control_command::what) what, std::string why) {
  outstanding_.push_back({config_.run, ++commands_, what});
  return {send_command{outstanding_.back()}, std::move(why)};
}

void run_attempt::note_formed(const std::vector<worker_place>& places, std::uint64_t commands_agreed) {
  formed_.clear();
  for (const auto& place : places)
    if (const auto* who = workers_.find(place.worker))
      formed_.push_back({place, who->came_after, history_of(who->stands).loop});
  has_formed_ = true;
  // Keep commands until the next generation: the member that agreed may have died before telling others.
  std::erase_if(outstanding_, [this](const control_command& x) { return x.sequence <= agreed_before_; });
  agreed_before_ = commands_agreed;
}

void run_attempt::on_started(const std::vector<worker_place>& places, run_time now) {
  for (const auto& place : places)
    workers_.add(place, began_at_, now);
}

run_action run_attempt::dismiss_survivor(const worker_place& place, run_time now) {
  workers_.add(place, began_at_, now);
  workers_.find(place.worker)->stands = standing::dismissed{};
  const auto* why = "it had no place when the driver was started again";
  return {fence_worker{place.worker, why}, why};
}

run_actions run_attempt::on_ready(worker_record& who) {
  who.stands = standing::ready{history_of(who.stands).since};
  if (is_starting()) {
    auto is_there = [](const worker_record& x) { return is_any<standing::ready, standing::ended>(x.stands); };
    return workers_.all(is_there) ? begin() : run_actions{};
  }
  // Its plan can be compared only once the members have agreed on theirs. They may be held because they are too few.
  return plans_.empty() ? form_when_all_have_reported() : prepare(who);
}

run_actions run_attempt::begin() {
  state_.begin_training();
  std::vector<worker_place> members;
  for (auto& [id, who] : workers_)
    if (!who.is<standing::ended>()) {
      who.stands = standing::active{.plan = {}, .report = {}, .history = history_of(who.stands)};
      who.came_after = began_at_;
      members.push_back(who.place);
    }
  std::ranges::sort(members, {}, &worker_place::rank);
  note_formed(members, 0);
  run_actions actions{{begin_all{number_}, fmt::format("all {} workers are ready", workers_.size())}};
  if (course_.asked == run_course::request::stop)
    actions.push_back(command(stop_command{}, "a stop is requested"));
  // Handle what came while the processes started: a resize, a pause, new capacity.
  append(actions, resize());
  if (course_.asked == run_course::request::pause)
    append(actions, ask_for_regroup("the run is paused"));
  return actions;
}

run_actions run_attempt::accept(const run_plan& plan, run_time now) {
  workers_.forget_plans();
  const auto is_next_loop = plans_.add(plan);
  run_actions actions{{accept_plans{plan, generation_}, "all workers have the same plan"}};
  for (auto& [id, who] : workers_)
    if (plans_.has_own_loop() && who.is_joining()) {
      append(actions, dismiss(who, "no worker can join a custom loop", "the training function has a custom loop"));
    } else if (who.is<standing::ready>()) {
      append(actions, prepare(who));
    } else if (is_next_loop && waits(who)) {
      // It waits at a loop that the members have completed now. A joiner that has yet to reach the loop skips it then.
      append(actions, wait_for_place(who, now));
    } else if (auto* follower = who.as<standing::following>(); follower != nullptr && is_next_loop) {
      // A follower cannot cross into the next loop: it gets the answer when it reports.
      follower->now = standing::following::distance::behind;
      append(actions, staging_.leave(who, who.stands));
    }
  append(actions, replace_missing());
  return actions;
}

std::uint32_t run_attempt::missing() const {
  // No worker can join a custom loop: its members are fixed when the attempt starts.
  if (!goes_on() || course_.is_ending() || plans_.has_own_loop() || !config_.failure.replace_lost ||
      joiner_budget_.is_spent())
    return 0;
  const auto there =
      workers_.count([](const worker_record& x) { return (x.is_active() || x.is_joining()) && !x.is_leaving(); });
  return course_.workers - std::min(course_.workers, there);
}

run_actions run_attempt::replace_missing() const {
  const auto count = missing();
  if (count == 0)
    return {};
  return {{start_more{count}, fmt::format("{} of {} are missing", count, count_workers(course_.workers))}};
}

run_actions run_attempt::regroup(const std::string& why, const error& reason) {
  if (!is_regrouping())
    state_.begin_regrouping(why);
  workers_.keep_needed(course_.workers);
  run_actions actions;
  // If all have reported, no member needs an abort of this generation.
  const auto is_awaited = workers_.any(&worker_record::is_awaited);
  if (is_awaited && state_.abort_group()) {
    workers_.forget_plans();
    actions.push_back({abort_generation{{errc::aborted, reason.message}, generation_}, why});
  }
  append(actions, form_when_all_have_reported());
  return actions;
}

run_actions run_attempt::ask_for_regroup(const std::string& why) {
  if (course_.is_ending() || !state_.ask_for_regroup(why))
    return {};
  return {command(regroup_command{generation_}, why)};
}

run_actions run_attempt::on_tick(run_time now) {
  auto actions = stop_waiting_for_followers(now);
  if (joiner_budget_.end_pause(now))
    append(actions, replace_missing());
  append(actions, let_joiners_in(now));
  return actions;
}

void run_attempt::note_report(worker_record& who, const regroup_report& report) {
  generation_ = std::max(generation_, report.generation);
  if (const auto* progress = report.progress())
    note_progress(who, progress->committed);
}

std::optional<run_actions> run_attempt::on_report_of_member(worker_record& who, const regroup_report& report) {
  who.as<standing::active>()->report = report;
  note_report(who, report);
  if (is_regrouping())
    return form_when_all_have_reported();
  const auto asked = state_.cause();
  if (!asked || !report.is<worker_position::between_steps>() || report.reason.code != errc::none)
    return std::nullopt;
  state_.begin_regrouping(*asked);
  return form_when_all_have_reported();
}

run_actions run_attempt::form_when_all_have_reported() {
  if (!is_regrouping())
    return {};
  // No reports: all active workers were lost with their node. The last reported loss decides.
  const auto reports = collect_reports(workers_);
  if (!reports)
    return {};
  if (const auto late = left_behind(); !late.empty()) {
    run_actions actions;
    for (auto* who : late)
      append(actions, wait_for_place(*who, history_of(who->stands).since));
    return actions;
  }
  if (auto actions = leave_out_cut_off(); !actions.empty()) {
    append(actions, form_when_all_have_reported());
    append(actions, replace_missing());
    return actions;
  }
  const auto at_boundary = reports->point == report_point::boundary;
  // Members wait a moment for joiners that are about to come to this boundary.
  if (at_boundary && workers_.any(&worker_record::is_caught_up)) {
    state_.wait_for_followers();
    return {};
  }
  if (reports->with_state.empty() && course_.end) {
    // All workers with the state have finished, so joiners that did not get it in time are not needed.
    for (auto* who : reports->members)
      who->stands = standing::released{};
    state_.end_with(attempt_phase::completed{});
    return {};
  }
  if (reports->with_state.empty()) {
    state_.end_with(attempt_phase::lost{"no worker has the state any more: " + *state_.cause()});
    return {};
  }
  auto decision = decide_regroup(reports->with_state);
  if (!decision) {
    state_.end_with(attempt_phase::contradicted{reports->members.front()->place.worker, decision.error()});
    return {};
  }
  if (must_be_held())
    return hold_at(decision->commit_point, reports->members.size());
  const auto is_saved = state_.checkpoint() && decision->commands_agreed >= *state_.checkpoint();
  if (at_boundary && is_saved && !course_.end && std::ranges::all_of(reports->members, &worker_record::is_leaving) &&
      !workers_.any([this](const worker_record& x) { return comes_in(x); }))
    return let_all_go(reports->members);
  return form(*reports, std::move(*decision));
}

/// Workers whose caught-up report the previous driver left unanswered. Members have moved on, so they join again.
std::vector<worker_record*> run_attempt::left_behind() {
  std::vector<worker_record*> result;
  step_id furthest;
  for (auto& [id, who] : workers_)
    if (const auto* member = who.as<standing::active>(); is_inherited() && member != nullptr && member->report)
      if (const auto* progress = member->report->progress())
        furthest = std::max(furthest, progress->committed);
  for (auto& [id, who] : workers_)
    if (const auto* member = who.as<standing::active>(); is_inherited() && member != nullptr && member->report &&
                                                         member->report->is<worker_position::caught_up>() &&
                                                         member->report->progress()->committed < furthest)
      result.push_back(&who);
  return result;
}

/// If the data network between nodes is cut, fences the members on some nodes, so that the others can continue. The
/// others recompute uncommitted steps, as if the fenced members had died.
run_actions run_attempt::leave_out_cut_off() {
  // The ranks in the reports belong to the generation that has ended, which an inherited attempt may not know.
  if (is_inherited())
    return {};
  std::vector<member_reach> members;
  for (const auto& member : formed_) {
    auto& reach = members.emplace_back(member_reach{member.place.node, false, {}});
    const auto* who = workers_.find(member.place.worker);
    const auto* active = who == nullptr ? nullptr : who->as<standing::active>();
    if (active == nullptr || !active->report || active->report->generation != generation_)
      continue;
    // Nobody knows whether those on a silent node still live.
    reach.has_state = active->report->progress() != nullptr && !silent_.contains(member.place.node);
    reach.unreachable = active->report->unreachable;
  }
  run_actions actions;
  for (auto node : choose_nodes_cut_off(members)) {
    actions.push_back({avoid_node{node}, reason_of_cut});
    for (auto& [id, who] : workers_) {
      if (!who.is_active() || who.place.node != node)
        continue;
      who.stands = standing::released{};
      cut_off_.emplace(id, generation_);
      actions.push_back({refuse_report{id, {errc::stale_generation, reason_of_cut}}, reason_of_cut});
      actions.push_back({fence_worker{id, reason_of_cut}, reason_of_cut});
    }
  }
  // Surplus members replace the fenced ones.
  if (!actions.empty())
    workers_.keep_needed(course_.workers);
  return actions;
}

/// Whether the next generation must wait although all members have reported.
bool run_attempt::must_be_held() const {
  if (course_.is_ending())
    return false;
  // Before the first plan is agreed on, joiners wait as soon as they are ready.
  auto is_here = [&](const worker_record& x) {
    return x.is_active() || waits(x) || (x.is<standing::ready>() && plans_.empty());
  };
  const auto there = workers_.count([&](const worker_record& x) { return !x.is_leaving() && is_here(x); });
  // If all members are to leave, they do not wait for others.
  return course_.asked == run_course::request::pause ||
         (config_.workers.is_elastic() && there > 0 && there < std::min(config_.workers.min, course_.workers));
}

run_actions run_attempt::hold_at(step_id commit_point, std::size_t members) {
  if (!state_.hold())
    return {};
  if (course_.asked == run_course::request::pause)
    return {{hold{hold::cause::pause}, fmt::format("the run is paused after step {}", commit_point)}};
  return {{hold{hold::cause::too_few_workers},
           fmt::format("the run waits after step {}: it needs at least {}, and has {}. Start more "
                       "caf-nodes, or resize the run",
                       commit_point, count_workers(config_.workers.min), members)}};
}

/// All members leave without replacements: the run continues from its checkpoint once there is capacity.
run_actions run_attempt::let_all_go(const std::vector<worker_record*>& members) {
  auto cause = *state_.cause();
  run_actions actions;
  for (const auto* who : members) {
    actions.push_back({refuse_report{who->place.worker, {errc::aborted, "this worker's node goes away"}}, cause});
    actions.push_back({release_one{who->place.worker}, cause});
  }
  state_.end_with(attempt_phase::lost{std::move(cause)});
  return actions;
}

run_actions run_attempt::form(const collected_reports& reports, regroup_decision decision) {
  form_generation next;
  // A worker without the state can join only at a boundary, where no member is within a step. Decide this before
  // members are chosen to leave: the joiner may be a replacement.
  std::vector<worker_record*> joining;
  if (reports.point == report_point::boundary)
    for (auto& [id, who] : workers_)
      if (comes_in(who))
        joining.push_back(&who);
  if (!joining.empty())
    joiner_budget_.reset();
  auto members = choose_staying(reports, next.released);
  members.insert(members.end(), joining.begin(), joining.end());
  seat_members(members, decision.commit_point, next);
  ++generation_.value;
  next.record = describe_interruption(reports, decision.commit_point);
  next.record.run = config_.run;
  next.record.generation = generation_;
  next.record.attempt = number_;
  next.record.workers = static_cast<std::uint32_t>(members.size());
  next.record.commit_point = decision.commit_point;
  next.record.reason = *state_.cause();
  auto why = decision.reason;
  note_formed(next.places, decision.commands_agreed);
  next.decision = std::move(decision);
  state_.begin_training();
  auto actions = run_actions{{std::move(next), std::move(why)}};
  // Joiners that could not join, and members that could not leave, do so at the next boundary.
  if (workers_.any([this](const worker_record& x) { return comes_in(x); }))
    append(actions, ask_for_regroup("joiners wait"));
  else if (workers_.leaving() > 0 && workers_.staying() > 0)
    append(actions, ask_for_regroup("workers leave"));
  else if (workers_.leaving() > 0 && !workers_.any(&worker_record::is_joining))
    append(actions, ask_all_to_leave());
  return actions;
}

} // namespace troupe::actors
