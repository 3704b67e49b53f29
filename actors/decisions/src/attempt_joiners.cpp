// Joiners, from the start of their processes until they have a place.
#include <troupe/actors/decisions/run_attempt.hpp>

#include <troupe/actors/decisions/joiner_deadlines.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

/// How long the members wait at a boundary for a joiner that has caught up: it has a step or two to apply.
constexpr auto follower_patience = std::chrono::seconds{2};

} // namespace

run_actions run_attempt::prepare(worker_record& who) {
  who.stands = standing::preparing{history_of(who.stands)};
  begin_joiner begins{who.place.worker, {}};
  for (const auto& plan : plans_.all())
    begins.evaluations.push_back(plan.evaluations);
  return {{std::move(begins), name_of(who.place) + " has joined"}};
}

run_actions run_attempt::drop_joiner(const worker_record& who, const worker_standing& before, ended_by cause,
                                     const error& reason) {
  auto actions = staging_.leave(who, before);
  if (std::holds_alternative<standing::following>(before))
    append(actions, form_when_all_have_reported());
  joiner_budget_.add(cause);
  if (joiner_budget_.is_spent())
    actions.push_back(
        {warn{}, fmt::format("{} in a row ended before they had joined, so the next is started in {} s, or "
                             "when there is new capacity; the last one: {}",
                             count_workers(joiner_budget_.in_row()), joiner_budget_.pause().count(), reason.message)});
  return actions;
}

run_actions run_attempt::dismiss(worker_record& who, const std::string& reason, const std::string& why) {
  const auto before = std::exchange(who.stands, standing::dismissed{});
  run_actions actions{{fence_worker{who.place.worker, reason}, why}};
  append(actions, staging_.leave(who, before));
  return actions;
}

/// Whether a joiner receives the state in its first generation, while the members wait. True if the state is small,
/// members wait or leave anyway, or staging has failed repeatedly.
bool run_attempt::takes_state_in_generation(const worker_record& joiner) const {
  if (plans_.state_bytes() <= config_.failure.background_transfer_above_bytes)
    return true;
  const auto too_few =
      config_.workers.is_elastic() && workers_.staying() < std::min(config_.workers.min, course_.workers);
  return history_of(joiner.stands).stagings >= staging_groups::most_tries || is_held() || too_few ||
         workers_.leaving() > 0;
}

/// Lets joiners in at the next boundary, once they have the state. Joiners that ask at about the same time are let in
/// together.
run_actions run_attempt::let_joiners_in(run_time now) {
  const auto waiting = find_due(workers_, now);
  if (waiting.empty())
    return {};
  const auto names = describe_joining(waiting);
  const auto without_staging =
      std::ranges::any_of(waiting, [this](const auto* x) { return takes_state_in_generation(*x); });
  return without_staging ? ask_for_regroup(names) : stage(waiting, names);
}

/// Makes the members send them the state while training continues. One group at a time.
run_actions run_attempt::stage(const std::vector<worker_record*>& joiners, const std::string& names) {
  if (!is_training() || state_.cause() || course_.is_ending() || staging_.is_open(workers_))
    return {};
  auto group = staging_.open(generation_, plans_.current_loop(), commands_ + 1, config_.transport, workers_, joiners);
  run_actions actions{command(group.command, names + ": it gets the state while training goes on")};
  actions.push_back({std::move(group), names});
  return actions;
}

run_actions run_attempt::on_caught_up(const caught_up& message) {
  auto* who = workers_.find(message.worker);
  const auto* follower = who == nullptr ? nullptr : who->as<standing::following>();
  if (follower == nullptr || !staging_.is_current(message.staging) || message.generation != generation_ ||
      !plans_.is_current(follower->history.loop))
    return {};
  const auto followers = staging_.on_caught_up(workers_, *who, message.step);
  return followers.empty() ? run_actions{} : ask_for_regroup(describe_joining(followers));
}

run_actions run_attempt::on_report_of_joiner(worker_record& who, const regroup_report& report, run_time now) {
  return who.is<standing::following>() ? on_report_of_follower(who, report, now) : wait_for_place(who, now);
}

/// A follower has reported: either it has reached the boundary at which the members wait, or will soon, and becomes a
/// member; or its staging group has failed.
run_actions run_attempt::on_report_of_follower(worker_record& who, const regroup_report& report, run_time now) {
  const auto* arrived = std::get_if<worker_position::caught_up>(&report.position);
  const auto* fell_back = std::get_if<worker_position::without_state>(&report.position);
  const auto staging = arrived != nullptr ? arrived->staging : fell_back != nullptr ? fell_back->staging : 0;
  if (!staging_.is_current(staging))
    return staging_.answer_again(who);
  const auto history = history_of(who.stands);
  const auto asked = state_.cause();
  if (asked && arrived != nullptr && report.generation == generation_ && plans_.is_current(history.loop)) {
    who.stands = standing::active{.plan = {}, .report = report, .history = history};
    who.note_applied(arrived->progress.committed);
    joiner_budget_.reset();
    if (!is_regrouping())
      state_.begin_regrouping(*asked);
    return form_when_all_have_reported();
  }
  // Members may stop forming the staging group.
  auto actions = staging_.leave(who, who.stands);
  append(actions, wait_for_place(who, now));
  return actions;
}

/// A joiner without the state has reported.
run_actions run_attempt::wait_for_place(worker_record& who, run_time now) {
  auto history = history_of(who.stands);
  history.since = now;
  if (plans_.is_behind(history.loop)) {
    who.stands = standing::preparing{history};
    auto actions = run_actions{{skip_loop{who.place.worker, plans_.of_loop(history.loop + 1)->evaluations},
                                name_of(who.place) + " has reached a loop that the members have completed"}};
    append(actions, form_when_all_have_reported());
    return actions;
  }
  who.stands = standing::waiting{history};
  return is_regrouping() ? form_when_all_have_reported() : let_joiners_in(now);
}

/// Stops waiting for a follower that is slower than it estimated.
run_actions run_attempt::stop_waiting_for_followers(run_time now) {
  const auto since = state_.waiting_since(now);
  if (!since || now - *since <= follower_patience)
    return {};
  staging_groups::stop_waiting(workers_);
  return form_when_all_have_reported();
}

bool run_attempt::comes_in(const worker_record& who) const {
  return who.is<standing::waiting>() && takes_state_in_generation(who);
}

} // namespace troupe::actors
