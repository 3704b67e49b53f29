// Which processes a run lets in, and whether the workers agree on the plan.
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

using namespace run_phase;

run_actions run_coordinator::on_ready(const worker_ready& message) {
  auto* who = attempt_.workers().find(message.worker);
  if (who == nullptr || (!starting() && !goes_on()))
    return {};
  const auto was_adopted = who->is_active() && !who->numerics;
  if (!who->is<standing::started>() && !was_adopted)
    return {};
  who->host = message.host;
  who->pid = message.pid;
  // Of a run that was taken over, a joiner may be the first to say what it computes on.
  const auto is_first = !attempt_.workers().any([](const worker_record& x) { return x.numerics.has_value(); });
  auto refused = hosts_.refuse(*who, message, attempt_.workers(),
                               resumed_   ? resumed_->numerics
                               : is_first ? attempt_.numerics()
                                          : std::string{});
  if (was_adopted) {
    // It was let in before, and says only whether the hosts are alike.
    attempt_.note_numerics(*who, message.numerics);
    return {};
  }
  if (refused && starting())
    return fail_run(record(*who, std::move(refused->reason)), refused->why);
  if (refused) {
    run_actions actions{{fence_worker{who->place.worker, refused->reason.message}, refused->why}};
    append(actions, give_up_joiner(*who, record(*who, std::move(refused->reason))));
    return with_replacement(std::move(actions));
  }
  attempt_.note_numerics(*who, message.numerics);
  auto actions = end_or_restart_if_stuck(attempt_.on_ready(*who));
  if (goes_on())
    repeated_.note_begin();
  return actions;
}

run_actions run_coordinator::on_plan(const run_plan& message, time now) {
  auto* who = attempt_.workers().find(message.worker);
  if (who == nullptr || !goes_on())
    return {};
  if (who->is_joining())
    return on_plan_of_joiner(*who, message);
  auto* member = who->as<standing::active>();
  if (member == nullptr || !training())
    return {};
  if (attempt_.plans().of_loop(message.loop) != nullptr)
    return on_repeated_plan(*who, message);
  member->plan = message;
  auto is_awaited = [](const worker_record& x) { return x.is_active() && !x.as<standing::active>()->plan; };
  if (attempt_.workers().any(is_awaited))
    return {};
  auto wrong = find_plan_difference(attempt_.workers());
  if (!wrong && resumed_)
    wrong = compare_with_checkpoint(message, *resumed_);
  if (!wrong)
    return end_or_restart_if_stuck(attempt_.accept(message, now));
  run_actions actions{{refuse_plans{*wrong, std::nullopt}, "the plans differ"}};
  append(actions, fail_run(record(*who, std::move(*wrong)), "the plans differ"));
  if (auto* now = std::get_if<failing>(&phase_))
    now->answered = errc::mismatch;
  return actions;
}

/// The plan of this loop was accepted before, perhaps by another driver, and the answer is still on its way or was
/// lost.
run_actions run_coordinator::on_repeated_plan(worker_record& who, const run_plan& message) {
  const auto name = name_of(who.place);
  auto wrong = compare_plans(*attempt_.plans().of_loop(message.loop), "in this run", message, "on " + name);
  if (!wrong)
    return {{accept_plan_of{who.place.worker}, name + " has the plan that was accepted"}};
  run_actions actions{{refuse_plans{*wrong, who.place.worker}, "the plans differ"}};
  append(actions, fail_run(record(who, std::move(*wrong)), "the plans differ"));
  return actions;
}

run_actions run_coordinator::on_plan_of_joiner(worker_record& who, const run_plan& message) {
  const auto* accepted = attempt_.plans().of_loop(message.loop);
  auto wrong =
      accepted == nullptr ? std::nullopt : compare_plans(*accepted, "in this run", message, "on " + name_of(who.place));
  if (!wrong) {
    who.note_loop(message.loop);
    return {{accept_plan_of{who.place.worker}, name_of(who.place) + " has the same plan as the members"}};
  }
  run_actions actions{{refuse_plans{*wrong, who.place.worker}, "a joiner has a different plan"}};
  append(actions, give_up_joiner(who, record(who, std::move(*wrong))));
  actions.push_back({release_one{who.place.worker}, "it has a different plan"});
  return with_replacement(std::move(actions));
}

} // namespace troupe::actors
