// What the end of a training function does to a run, and how a run ends.
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

using namespace run_phase;

run_actions run_coordinator::on_finished(const worker_finished& message) {
  auto* who = attempt_.workers().find(message.worker);
  if (who == nullptr || over())
    return {};
  if (who->is_joining()) {
    if (!goes_on())
      return {};
    auto actions = give_up_joiner(*who, record(*who, message.reason));
    actions.push_back({release_one{message.worker}, "it failed before it had a place"});
    return with_replacement(std::move(actions));
  }
  if (auto* released = who->as<standing::released>(); released != nullptr && std::exchange(released->unwinds, false))
    return {{release_one{message.worker}, "its training function has ended"}};
  if (!who->is_active())
    return {};
  who->stands = standing::finished{};
  attempt_.note_progress(*who, message.step);
  if (message.needs_restart && goes_on()) {
    auto what = record(*who, message.reason);
    what.consequence = attempt_.is_regrouping();
    const auto lost = name_of(who->place) + " has lost its group";
    if (training() && !within_budget())
      return fail_run(std::move(what), lost + ", too often");
    // The previous driver may have given it up.
    if (attempt_.is_inherited()) {
      who->stands = standing::released{};
      run_actions actions{{release_one{message.worker}, lost}};
      append(actions, go_on_without(std::move(what), lost));
      return with_replacement(std::move(actions));
    }
    return restart(std::move(what), attempt_.state().cause().value_or(lost));
  }
  if (may_be_an_accident(message.reason) && goes_on() && budget_.survives_failures())
    return fail_once(*who, message);
  if (message.reason.code != errc::none) {
    auto what = record(*who, message.reason);
    const auto* now_failing = std::get_if<failing>(&phase_);
    what.consequence = now_failing != nullptr &&
                       (now_failing->answered == message.reason.code || now_failing->copy.is_asked(message.worker));
    return fail_run(std::move(what), name_of(who->place) + " failed, which ends the run");
  }
  if (auto* now = std::get_if<failing>(&phase_))
    return go_on_failing(now->copy.on_finished(attempt_.workers(), message.worker, errc::none));
  auto& end = attempt_.course().end;
  if (!end)
    end = run_end::of(message);
  else if (auto wrong = end->compare(message, name_of(who->place)))
    return fail_run(record(*who, std::move(*wrong)), "replicas differ at the end");
  if (message.stopped)
    end->status = run_status::stopped;
  if (attempt_.workers().nobody_is_active())
    return release();
  return end_or_restart_if_stuck(attempt_.form_when_all_have_reported());
}

/// The training function of a member has thrown in a step, and the member still has the state. If nobody else has it,
/// it is saved. What the exception does to the run is decided when the function has ended; if others have the state, at
/// once: they may throw, too, and the last of them has to be known.
run_actions run_coordinator::on_throw(worker_record& who, const regroup_report& report) {
  attempt_.note_report(who, report);
  const auto has_state = [&](const worker_record& x) { return &x != &who && x.surely_has_state(attempt_.began_at()); };
  const auto committed = report.progress()->committed;
  if (!attempt_.workers().any(has_state))
    return {{save_state{report.worker, report.reason, committed},
             fmt::format("{} has failed in step {}, and saves the state before it", name_of(who.place),
                         committed.value + 1)}};
  run_actions actions{
      {refuse_report{report.worker, {errc::aborted, "others have the state"}}, "others have the state"}};
  worker_finished end;
  end.run = report.run;
  end.generation = report.generation;
  end.worker = report.worker;
  end.step = committed;
  end.reason = report.reason;
  append(actions, on_finished(end));
  if (auto* released = attempt_.workers().find(report.worker)->as<standing::released>()) {
    released->unwinds = true;
    std::erase_if(actions, [](const run_action& x) { return std::holds_alternative<release_one>(x.what); });
  }
  return actions;
}

run_actions run_coordinator::fail_once(worker_record& who, const worker_finished& message) {
  auto what = record(who, message.reason);
  auto why = fmt::format("{} failed: {}", name_of(who.place), message.reason.message);
  // The same step failed before, so the failure is reproducible.
  if (auto earlier = repeated_.note_own_failure(message.step, failures_.size()))
    return fail_run(std::move(what), why, earlier);
  // Before the first step nothing is lost by ending, and a second attempt would fail in the same way.
  if (message.step <= attempt_.began_at() || !within_budget())
    return fail_run(std::move(what), why);
  if (is_all_lost())
    return restart(std::move(what), std::move(why));
  who.stands = standing::released{};
  run_actions actions{{release_one{who.place.worker}, why}};
  append(actions, go_on_without(std::move(what), why));
  return with_replacement(std::move(actions));
}

/// Lets all processes end.
run_actions run_coordinator::release() {
  phase_ = releasing{};
  if (attempt_.workers().all_members_have_ended())
    return conclude_end("all workers have ended");
  return {{release_all{}, "all workers have returned from the training function"}};
}

run_actions run_coordinator::on_grace_timeout() {
  if (is<releasing>())
    return conclude_end("workers did not end within the grace period");
  return {};
}

run_actions run_coordinator::fail_run(failure_record what, const std::string& why,
                                      std::optional<std::size_t> earlier_cause) {
  if (over())
    return {};
  const auto was_starting = starting();
  if (auto* now = std::get_if<failing>(&phase_)) {
    const auto worker = what.worker;
    const auto code = what.reason.code;
    failures_.add(std::move(what));
    return go_on_failing(attempt_.workers().stands_as<standing::finished>(worker)
                             ? now->copy.on_finished(attempt_.workers(), worker, code)
                             : now->copy.on_ended(attempt_.workers(), worker));
  }
  auto answer = error{errc::aborted, "the run is ending: " + what.reason.message};
  // If replicas differ, it is unknown which is right. The state of a custom loop is known to the training function
  // only.
  const auto is_kept = what.reason.code != errc::mismatch && !has_own_loop();
  auto copy = is_kept ? last_copy{answer, attempt_.began_at()} : last_copy{answer};
  phase_ = failing{earlier_cause.value_or(failures_.size()), std::move(copy), {}};
  failures_.add(std::move(what));
  if (was_starting || attempt_.workers().nobody_is_active())
    return conclude_failure(why);
  run_actions actions{{abort_all{std::move(answer)}, why}};
  append(actions, std::get<failing>(phase_).copy.begin(attempt_.workers()));
  return actions;
}

/// Ends a failing run when no training function is left.
run_actions run_coordinator::go_on_failing(run_actions actions) {
  return attempt_.workers().nobody_is_active() ? conclude_failure("all workers have reported") : std::move(actions);
}

run_actions run_coordinator::conclude_failure(const std::string& why) {
  return conclude_run(run_status::failed, failures_.conclude(std::get<failing>(phase_).first_failure), why);
}

run_actions run_coordinator::conclude_end(const std::string& why) {
  const auto& end = attempt_.course().end;
  return conclude_run(end ? end->status : run_status::completed, {}, why);
}

run_actions run_coordinator::conclude_run(run_status status, error reason, std::string why) {
  phase_ = run_phase::over{};
  return {{conclude{status, std::move(reason)}, std::move(why)}};
}

} // namespace troupe::actors
