#include <troupe/actors/decisions/run_coordinator.hpp>

#include <troupe/actors/decisions/joiner_deadlines.hpp>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::actors {

using namespace std::chrono_literals;

using namespace run_phase;

run_coordinator::run_coordinator(const settings& config)
    : first_step_(config.first_step),
      resumed_(config.resumed),
      hosts_({config.build_id, config.allow_mixed_hosts, config.compare_numerics, config.allow_changed_libraries}),
      budget_(config.failure.max_failures),
      repeated_(config.first_step),
      in_one_process_(config.in_one_process),
      attempt_({config.run, config.failure, config.workers, config.start_timeout, config.transport},
               run_course{config.workers, config.places.size()}, config.first_step) {
  on_started(config.places);
}

run_coordinator::run_coordinator(const settings& config, const control_state& from, time now)
    : first_step_(from.began_at),
      resumed_(config.resumed),
      hosts_({config.build_id, config.allow_mixed_hosts, config.compare_numerics, config.allow_changed_libraries}),
      budget_(config.failure.max_failures, from.failures),
      repeated_(from.began_at),
      in_one_process_(config.in_one_process),
      attempt_({config.run, config.failure, config.workers, config.start_timeout, config.transport},
               run_course{config.workers, from.members.size()}, from, now) {}

void run_coordinator::introduce(worker_id worker, const std::string& host, std::uint32_t pid) {
  if (auto* who = attempt_.workers().find(worker)) {
    who->host = host;
    who->pid = pid;
  }
}

run_actions run_coordinator::on_adopted(const std::vector<worker_place>& others, time now) {
  run_actions actions;
  for (const auto& place : others)
    actions.push_back(attempt_.dismiss_survivor(place, now));
  const auto* why = "the driver was started again";
  append(actions, end_or_restart_if_stuck(attempt_.regroup(why, {errc::aborted, why})));
  return with_replacement(std::move(actions));
}

/// Acts on the end of an attempt: restarts a lost one, fails the run if reports contradict each other, and releases the
/// workers of a completed one.
run_actions run_coordinator::end_or_restart_if_stuck(run_actions actions) {
  for (auto [worker, generation] : attempt_.take_cut_off())
    failures_.add(describe_failure(*attempt_.workers().find(worker), generation, {errc::unreachable, reason_of_cut}));
  if (!is<running>())
    return actions;
  if (const auto* lost = std::get_if<attempt_phase::lost>(&attempt_.state().phase()))
    append(actions, restart(std::nullopt, lost->why));
  else if (const auto* found = std::get_if<attempt_phase::contradicted>(&attempt_.state().phase()))
    append(actions, fail_run(record(*attempt_.workers().find(found->worker), found->reason),
                             "the reports contradict each other"));
  else if (std::holds_alternative<attempt_phase::completed>(attempt_.state().phase()))
    append(actions, release());
  return actions;
}

run_actions run_coordinator::with_replacement(run_actions actions) {
  if (goes_on())
    append(actions, attempt_.replace_missing());
  return actions;
}

run_actions run_coordinator::on_start_timeout() {
  const auto* first = attempt_.workers().first<standing::started>();
  if (first == nullptr || !starting())
    return {};
  const auto missing = attempt_.workers().missing();
  auto what = record(*first, {errc::timed_out, missing + " did not join in time after the start of the process: see "
                                                         "the worker's output, or raise run.start_timeout"});
  auto why = missing + " did not join in time";
  // A frozen process or host does not predict that a second start fails; a program that hangs would hang again.
  if (!repeated_.note_late_start() && within_budget())
    return restart(std::move(what), std::move(why));
  return fail_run(std::move(what), why);
}

/// Counts a failure. Returns whether the budget still holds.
bool run_coordinator::within_budget() {
  budget_.add(generation(), attempt_.furthest());
  return budget_.holds();
}

run_actions run_coordinator::on_ended(const worker_ended& message) {
  auto* who = attempt_.workers().find(message.worker);
  if (who == nullptr || who->is<standing::ended>() || over())
    return {};
  attempt_.silent().forget_worker(message.worker);
  if (message.committed)
    attempt_.note_progress(*who, *message.committed);
  const auto cause = who_ended(message, who->killed_by);
  const auto before = std::exchange(who->stands, standing::ended{cause});
  if (is<releasing>() || (is<failing>() && is_done(before))) {
    if (!attempt_.workers().all_members_have_ended())
      return {};
    return is<failing>() ? conclude_failure("all workers have ended") : conclude_end("all workers have ended");
  }
  // It was already given up. Its end frees capacity for a replacement.
  if (is_let_go(before))
    return with_replacement({});
  auto what = describe_exit(*who, before, generation(), message);
  auto why = fmt::format("{} ended: {}", name_of(who->place), message.description);
  // A process that ends by itself before it joins would do so again.
  if (starting())
    return cause == ended_by::outside && within_budget() ? restart(std::move(what), std::move(why))
                                                         : fail_run(std::move(what), why);
  if (is_joining(before) && goes_on())
    return with_replacement(lose_joiner(*who, before, std::move(what), cause));
  return with_replacement(lose(before, std::move(what), why));
}

run_actions run_coordinator::on_nodes_silent(const std::map<std::uint32_t, std::string>& nodes, time now) {
  if (over())
    return {};
  for (const auto& [node, why] : nodes)
    attempt_.silent().add_node(node, why, now);
  auto actions = give_up_silent(now);
  for (const auto& [node, why] : nodes)
    if (attempt_.silent().contains(node) && starting())
      actions.push_back({warn{}, why + "; the run waits for it, at most for run.start_timeout"});
    else if (attempt_.silent().contains(node) && goes_on())
      actions.push_back({hold{hold::cause::unreachable}, attempt_.silent().describe_wait(why)});
  return actions;
}

run_actions run_coordinator::on_node_answers(std::uint32_t node, time now) {
  const auto since = attempt_.silent().on_node_answers(node, now);
  if (!since || over())
    return {};
  attempt_.workers().restart_deadlines(node, now);
  return {{warn{}, fmt::format("a node answers again after {:.1f} s, and its workers go on",
                               std::chrono::duration<double>(now - *since).count())}};
}

run_actions run_coordinator::on_workers_silent(std::uint32_t node, const std::vector<silent_worker>& workers,
                                               time now) {
  const auto change = attempt_.silent().set_workers(node, workers, attempt_.workers(), now);
  run_actions actions;
  for (const auto& [worker, since] : change.answered)
    if (const auto* who = attempt_.workers().find(worker))
      actions.push_back({warn{}, fmt::format("{} answers again after {:.1f} s, and goes on", name_of(who->place),
                                             std::chrono::duration<double>(now - since).count())});
  append(actions, give_up_silent(now));
  for (auto worker : change.silent)
    if (attempt_.silent().contains(worker))
      actions.push_back({hold{hold::cause::unreachable}, attempt_.silent().describe_wait(worker)});
  return actions;
}

/// Gives up silent peers as soon as the run can continue without them, or after a time limit. A worker's node reports
/// its end.
run_actions run_coordinator::give_up_silent(time now) {
  run_actions actions;
  if (over())
    return actions;
  // In a failing run, silent peers may be the cause; a worker may have noticed first. While the state is to be saved,
  // they are waited for if nobody else has it, as in any run; saving has its own time limits.
  const auto* ends = std::get_if<failing>(&phase_);
  const auto is_needed = goes_on() || (ends != nullptr && !ends->copy.is_over());
  auto& silent = attempt_.silent();
  const auto due = is_needed ? silent.take_due(attempt_.workers(), attempt_.began_at(), somebody_has_finished(), now)
                             : (is<failing>() ? silent.take_all() : silent.take_workers());
  for (const auto& [worker, why] : due.workers)
    actions.push_back({fence_worker{worker, why}, why});
  for (const auto& [node, why] : due.nodes)
    actions.push_back({give_up_node{node}, why});
  append(actions, lose_nodes(due.nodes));
  return actions;
}

run_actions run_coordinator::on_node_lost(std::uint32_t node, const std::string& why) {
  attempt_.silent().forget_node(node);
  return lose_nodes({{node, why}});
}

/// Handles the loss of all workers on these nodes at once.
run_actions run_coordinator::lose_nodes(const std::map<std::uint32_t, std::string>& nodes) {
  if (over() || nodes.empty())
    return {};
  struct loss {
    worker_standing before;
    failure_record what;
    std::string why;
  };
  std::vector<loss> losses;
  for (const auto& [node, why] : nodes)
    for (auto& [who, before] : attempt_.workers().end_all_on(node))
      if (!is_let_go(before) && !(is<failing>() && is_done(before)))
        losses.push_back({std::move(before),
                          record(*who, {errc::node_lost, fmt::format("{}, and with it {}", why, name_of(who->place))}),
                          why});
  run_actions actions;
  const auto attempt = attempt_.number();
  // However many workers they had, it is one failure: others may form a group, and be in the next generation, at once.
  auto is_counted = false;
  for (auto& [before, what, why] : losses) {
    auto* who = attempt_.workers().find(what.worker);
    if (is<releasing>())
      continue;
    // The first loss already ended, restarted or regrouped the attempt; only record the rest.
    if (over() || attempt_.number() != attempt || who == nullptr || (is_counted && goes_on() && !is_joining(before)))
      failures_.add(std::move(what));
    else if (starting())
      append(actions, within_budget() ? restart(std::move(what), why) : fail_run(std::move(what), why));
    else if (is_joining(before) && goes_on())
      append(actions, lose_joiner(*who, before, std::move(what), ended_by::outside));
    else {
      is_counted = is_counted || !is_done(before);
      append(actions, lose(before, std::move(what), why));
    }
  }
  actions = with_replacement(std::move(actions));
  if (is<releasing>() && attempt_.workers().all_members_have_ended())
    append(actions, conclude_end("all workers have ended"));
  return actions;
}

/// A member with the standing `before` has ended. The others continue without it if the budget allows.
run_actions run_coordinator::lose(const worker_standing& before, failure_record what, const std::string& why) {
  if (!goes_on())
    return fail_run(std::move(what), why);
  // It had reported its result, so the others do not need it.
  if (is_done(before) && budget_.survives_failures()) {
    failures_.add(std::move(what));
    return {};
  }
  if (!within_budget()) {
    what.reason.message = fmt::format("{}: {}", budget_.describe_excess(), what.reason.message);
    return fail_run(std::move(what), why);
  }
  return go_on_without(std::move(what), why);
}

/// The run survives this failure.
run_actions run_coordinator::go_on_without(failure_record what, const std::string& why) {
  if (is_all_lost())
    return restart(std::move(what), why);
  auto reason = what.reason;
  failures_.add(std::move(what));
  if (attempt_.workers().nobody_is_active())
    return release();
  return end_or_restart_if_stuck(attempt_.regroup(why, reason));
}

/// A worker without a place, with the standing `before`, has ended or is given up. The members are not affected.
run_actions run_coordinator::lose_joiner(worker_record& who, const worker_standing& before, failure_record what,
                                         ended_by cause) {
  auto reason = what.reason;
  failures_.add(std::move(what));
  return end_or_restart_if_stuck(attempt_.drop_joiner(who, before, cause, reason));
}

/// Gives up a joiner whose process lives.
run_actions run_coordinator::give_up_joiner(worker_record& who, failure_record what) {
  const auto before = std::exchange(who.stands, standing::dismissed{});
  return lose_joiner(who, before, std::move(what), ended_by::itself);
}

/// No worker with the state is left: starts the next attempt from a checkpoint, unless the failure repeats itself.
run_actions run_coordinator::restart(std::optional<failure_record> what, std::string why) {
  const auto is_one_too_many = repeated_.note_end_of_attempt(
      attempt_.furthest(), attempt_.workers().any_ended_by_itself() ? ended_by::itself : ended_by::outside);
  if (what && is_one_too_many && repeated_.ends_by_itself()) {
    what->reason.message =
        fmt::format("{}: {}{}", repeated_.describe_own_ends(), what->reason.message, in_one_process_);
    return fail_run(std::move(*what), "the same step ends every attempt");
  }
  if (what && is_one_too_many)
    return fail_run(
        std::move(*what),
        fmt::format("no worker is left, as in the {} attempts before, and none of them completed a new step: {}",
                    repeated_.fruitless_attempts() - 1, why));
  if (what)
    failures_.add(std::move(*what));
  attempt_ = attempt_.next();
  return {{restart_run{}, std::move(why)}};
}

void run_coordinator::on_restarted(const std::vector<worker_place>& places, std::optional<resumed_plan> resumed,
                                   step_id first_step) {
  if (resumed)
    resumed_ = std::move(resumed);
  attempt_.begin_at(first_step);
  on_started(places);
}

run_actions run_coordinator::on_group_hang(const std::string& why) {
  // During a regroup, workers wait for the driver.
  const auto* who = attempt_.workers().first<standing::active>();
  if (!training() || who == nullptr)
    return {};
  auto what = record(*who, {errc::timed_out, why});
  // The first hang may be a connection that died silently. A second hang at the same step is the program's.
  const auto again = repeated_.note_hang(attempt_.furthest());
  if (again || !within_budget())
    return fail_run(std::move(what), again ? "no rank moves, as in the generation before" : why);
  return go_on_without(std::move(what), why);
}

run_actions run_coordinator::on_hang(worker_id worker, const std::string& why) {
  auto* who = attempt_.workers().find(worker);
  // Once one has returned, nobody else could do the rest.
  if (who == nullptr || somebody_has_finished())
    return {};
  who->killed_by = ended_by::itself;
  return {{fence_worker{worker, why}, why}};
}

run_actions run_coordinator::on_report(const regroup_report& report, time now) {
  auto* who = attempt_.workers().find(report.worker);
  if (who == nullptr || (!who->is_active() && !who->is_joining()))
    return {{refuse_report{report.worker,
                           {errc::stale_generation, "this worker was given up, and the others go "
                                                    "on without it"}},
             "it was given up before"}};
  if (auto* now = std::get_if<failing>(&phase_);
      now != nullptr && (!who->is_active() || attempt_.takes_report_of(report.generation)))
    return now->copy.on_report(attempt_.workers(), *who, report);
  if (!goes_on() && !is<failing>())
    return {{refuse_report{report.worker, {errc::aborted, "the run is ending"}}, "the run is ending"}};
  if (is_any<standing::preparing, standing::waiting, standing::following>(who->stands))
    return end_or_restart_if_stuck(attempt_.on_report_of_joiner(*who, report, now));
  if (!who->is_active() || !attempt_.takes_report_of(report.generation))
    return {{refuse_report{report.worker,
                           {errc::stale_generation,
                            fmt::format("generation {} is over; the last is {}", report.generation, generation())}},
             "its generation is over"}};
  if (report.is<worker_position::thrown>())
    return on_throw(*who, report);
  if (auto actions = attempt_.on_report_of_member(*who, report))
    return end_or_restart_if_stuck(std::move(*actions));
  // Its node may still report that a peer has ended, which is the same failure. If all live, a connection has failed,
  // and they form a new group. A worker held by a debugger does not answer the others, which is no failure.
  if (!attempt_.silent().holds_any() && !within_budget())
    return fail_run(record(*who, report.reason), name_of(who->place) + " has lost its group, too often");
  return end_or_restart_if_stuck(attempt_.regroup(name_of(who->place) + " has lost its group", report.reason));
}

run_actions run_coordinator::on_caught_up(const caught_up& message) {
  return goes_on() ? attempt_.on_caught_up(message) : run_actions{};
}

void run_coordinator::on_applied(worker_id worker, step_id step) {
  if (auto* who = attempt_.workers().find(worker))
    attempt_.note_progress(*who, step);
}

void run_coordinator::on_sign_of_life(worker_id worker, std::uint64_t progress, time now) {
  if (auto* who = attempt_.workers().find(worker))
    who->note_sign_of_life(progress, now);
}

run_actions run_coordinator::on_tick(time now) {
  auto actions = give_up_silent(now);
  if (auto* fails = std::get_if<failing>(&phase_)) {
    append(actions, fails->copy.on_tick(attempt_.workers(), now));
    if (fails->copy.is_overdue())
      append(actions, conclude_failure("the grace period is over"));
    return actions;
  }
  if (!goes_on() || awaits_answers())
    return actions;
  append(actions, give_up_overdue_joiners(now));
  append(actions, attempt_.on_tick(now));
  return end_or_restart_if_stuck(std::move(actions));
}

run_actions run_coordinator::give_up_overdue_joiners(time now) {
  run_actions actions;
  for (auto& late : find_overdue(attempt_.workers(), attempt_.config().failure, attempt_.config().start_timeout, now)) {
    auto* who = attempt_.workers().find(late.worker);
    actions.push_back({fence_worker{late.worker, std::move(late.what)}, late.reason.message});
    append(actions, give_up_joiner(*who, record(*who, std::move(late.reason))));
  }
  return actions.empty() ? actions : with_replacement(std::move(actions));
}

} // namespace troupe::actors
