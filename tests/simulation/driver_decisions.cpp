#include "driver_model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

// How the driver of a simulation carries out what its coordinator decides.

namespace troupe::simulation {

using namespace actors;

namespace {

template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;

template <class Action>
bool is(const run_action& action) {
  return std::holds_alternative<Action>(action.what);
}

} // namespace

void driver_model::act_on_speaker(bool is_stale, const run_actions& actions) {
  if (is_stale)
    for (const auto& each : actions)
      // One that was let go says when its training function has ended, and may go.
      if (!std::holds_alternative<refuse_report>(each.what) && !std::holds_alternative<release_one>(each.what))
        world_.violate("something came of what a stale member has said: " + each.why);
  act(actions);
}

/// A run ends once, and what is done for it fits together.
void driver_model::check(const run_action& action) {
  if (action.why.empty())
    world_.violate("something is done without a reason");
  if (concluded_ && !is<refuse_report>(action))
    world_.violate("something is done after the end: " + action.why);
  if (aborted_all_ &&
      (is<start_more>(action) || is<form_generation>(action) || is<restart_run>(action) || is<release_all>(action)))
    world_.violate("a failing run goes on: " + action.why);
  if (is<start_more>(action) &&
      std::ranges::any_of(commands_, [](const auto& x) { return std::holds_alternative<stop_command>(x.what); }))
    world_.violate("workers are started for a run that stops");
  if (const auto* next = std::get_if<form_generation>(&action.what))
    check(*next);
}

/// Joiners come in, and members leave, where nobody is in the middle of anything.
void driver_model::check(const form_generation& next) {
  if (next.record.generation != coordinator_.generation() || next.record.generation <= last_formed_)
    world_.violate("generations are not numbered in order");
  last_formed_ = next.record.generation;
  if (next.places.empty() || next.record.workers != next.places.size())
    world_.violate("a generation is not of as many workers as it says");
  auto with_state = 0;
  auto in_between = false;
  for (std::uint32_t rank = 0; rank < next.places.size(); ++rank) {
    const auto& place = next.places[rank];
    if (place.rank.value != rank)
      world_.violate("the ranks of a generation are not numbered in order");
    if (std::ranges::find(next.joiners, place.worker) != next.joiners.end())
      continue;
    ++with_state;
    const auto said = last_reports_.find(place.worker);
    in_between = in_between || said == last_reports_.end() ||
                 (!said->second.is<worker_position::between_steps>() && !said->second.is<worker_position::caught_up>());
  }
  auto had_state = [this](worker_id x) {
    const auto said = last_reports_.find(x);
    return said != last_reports_.end() && said->second.progress() != nullptr;
  };
  if (with_state == 0)
    world_.violate("nobody in a generation has the state");
  if (in_between && (!next.joiners.empty() || std::ranges::any_of(next.released, had_state)))
    world_.violate("joiners come in or members leave although a member is in the middle of something");
}

void driver_model::send(const send_command& what) {
  if (what.command.sequence != commands_.size() + 1)
    world_.violate("commands are not numbered in order");
  commands_.push_back(what.command);
  if (std::holds_alternative<stop_command>(what.command.what))
    world_.tells_to_stop(workers_);
  for (auto worker : workers_)
    tell(worker, what.command);
}

void driver_model::abort_everybody(const error& reason) {
  if (std::exchange(aborted_all_, true) || released_all_ || reason.code != errc::aborted)
    world_.violate("the end of a run is told twice");
  abort_workers(coordinator_.generation(), reason);
  answer_plans(fail(reason.code, reason.message));
  end_waits_of(coordinator_.generation());
}

void driver_model::end_waits_of(generation_id generation) {
  const auto next = generation_id{generation.value + 1};
  collectives_.begin({world_.run(), next, 0});
  store_.begin(next);
}

namespace {

/// The step whose state a member can save: also the one whose gradient it holds, if another has committed that.
step_id latest_of(const regroup_report& said, step_id furthest) {
  const auto* step = std::get_if<worker_position::in_step>(&said.position);
  const auto next = step_id{said.progress()->committed.value + 1};
  return step != nullptr && step->holds_gradient && next == furthest ? next : said.progress()->committed;
}

} // namespace

/// Who has the state, and is not refused: what these can save is saved before the end, unless they are lost, too.
void driver_model::note_who_waits_at_the_end(const run_actions& actions) {
  const auto refuses = [&](worker_id worker) {
    return std::ranges::any_of(actions, [worker](const run_action& x) {
      const auto* refused = std::get_if<refuse_report>(&x.what);
      return refused != nullptr && refused->worker == worker;
    });
  };
  for (const auto& [worker, number] : reports_)
    if (const auto& said = last_reports_.at(worker); is_in_grace() && !is_given_up(worker) &&
                                                     said.progress() != nullptr &&
                                                     !said.is<worker_position::caught_up>() && !refuses(worker))
      // A later report counts: what the earlier one held may have been dropped for a generation that is not told yet.
      waiting_at_the_end_.insert_or_assign(worker, latest_of(said, coordinator_.furthest()));
  for (const auto& action : actions)
    if (const auto* x = std::get_if<fence_worker>(&action.what))
      waiting_at_the_end_.erase(x->worker);
    else if (const auto* node = std::get_if<give_up_node>(&action.what))
      std::erase_if(waiting_at_the_end_, [&](const auto& each) { return where_[each.first] == node->node; });
}

void driver_model::release_everybody() {
  if (std::exchange(released_all_, true))
    world_.violate("the workers of a run are released twice");
  fail_pending({errc::aborted, "the run is over"});
  for (auto worker : workers_)
    tell(worker, release_worker{world_.run()});
}

void driver_model::warn_of(const std::string& why) {
  if (why.find("so the next is started in") != std::string::npos)
    world_.count(branch::joiners_given_up);
}

void driver_model::act(const run_actions& actions) {
  furthest_at_failures_.resize(coordinator_.failures().size(), coordinator_.furthest());
  note_who_waits_at_the_end(actions);
  for (const auto& action : actions) {
    check(action);
    if (const auto* next = std::get_if<form_generation>(&action.what))
      world_.forms(*next);
    if (const auto* begins = std::get_if<begin_all>(&action.what))
      last_decided_ = begins->attempt;
    if (const auto* refused = std::get_if<refuse_report>(&action.what);
        refused != nullptr && refused->reason.message == "others have the state")
      let_go_[refused->worker.value] = true;
    if (const auto* silent = std::get_if<give_up_node>(&action.what))
      world_.gives_up(silent->node, last_decided_, world_.clock() - silent_.at(silent->node));
    if (const auto* fenced = std::get_if<fence_worker>(&action.what))
      if (const auto silent = silent_workers_.find(fenced->worker); silent != silent_workers_.end())
        world_.gives_up(fenced->worker, last_decided_, world_.clock() - silent->second);
  }
  if (!world_.keeps_journal())
    return carry_out(actions);
  if (world_.defect() == mutation::keeps_its_journal_afterwards) {
    carry_out(actions);
    gate_.add({}, coordinator_.change_since(gate_.latest()));
    return write_journal();
  }
  gate_.add(actions, coordinator_.change_since(gate_.latest()));
  if (gate_.latest() != coordinator_.state_to_keep())
    world_.violate("a change is not kept");
  write_journal();
  carry_out_what_is_kept();
}

void driver_model::carry_out_what_is_kept() {
  while (auto actions = gate_.next())
    carry_out(*actions);
}

void driver_model::write_journal() {
  if (auto state = gate_.begin_write()) {
    // More may be started before it is written again.
    being_written_ = journal_model{std::move(*state), known_ + spare_worker_ids};
    world_.send_to_driver_itself(journal_written{});
  }
}

void driver_model::journal_is_written() {
  journal_ = std::exchange(being_written_, std::nullopt);
  gate_.on_written();
  write_journal();
  carry_out_what_is_kept();
}

void driver_model::end_while_writing(bool is_written) {
  if (being_written_ && is_written)
    journal_ = std::move(being_written_);
}

void driver_model::carry_out(const run_actions& actions) {
  for (const auto& action : actions) {
    if (concluded_ && world_.keeps_journal())
      return;
    if (world_.is_tracing())
      world_.note("driver, generation " + std::to_string(coordinator_.generation().value) + ": " + action.why);
    std::visit(overloaded{
                   [&](const begin_all& x) {
                     if (x.attempt != coordinator_.attempt())
                       return;
                     if (std::exchange(last_begun_, coordinator_.attempt()) == coordinator_.attempt())
                       world_.violate("an attempt begins twice");
                     begin_all_workers();
                   },
                   [&](const begin_joiner& x) { begin_joiner_of(x); },
                   [&](const accept_plans& x) { world_.send_to_driver_itself(metadata_stored{x.generation}); },
                   [&](const accept_plan_of& x) { answer_plan(x.worker, plan_accepted{coordinator_.generation()}); },
                   [&](const refuse_plans& x) {
                     world_.count(branch::plans_refused);
                     const auto why = fail(x.reason.code, x.reason.message);
                     x.worker ? answer_plan(*x.worker, why) : answer_plans(why);
                   },
                   [&](const refuse_report& x) {
                     if (x.reason.code == errc::stale_generation)
                       world_.count(branch::stale_report_refused);
                     answer_report(x.worker, fail(x.reason.code, x.reason.message));
                   },
                   [&](const send_command& x) { send(x); },
                   [&](const stage_joiners& x) { stage_state(x); },
                   [&](const skip_loop& x) { answer_report(x.worker, next_generation{loop_completed{x.evaluations}}); },
                   [&](const end_staging& x) {
                     world_.count(branch::staging_given_up);
                     collectives_.end({world_.run(), x.generation, x.number});
                   },
                   [&](const abort_generation& x) {
                     if (coordinator_.training() && x.generation == coordinator_.generation())
                       world_.violate("the generation that is formed is aborted in the same breath: " + action.why);
                     if (action.why.ends_with("has lost its group"))
                       world_.count(branch::found_by_workers);
                     abort_workers(x.generation, x.reason);
                     end_waits_of(x.generation);
                     if (world_.defect() == mutation::decides_before_all_have_reported)
                       guess_missing_reports();
                   },
                   [&](const hold& x) {
                     if (x.why == hold::cause::unreachable)
                       return world_.count(silent_workers_.empty() ? branch::held_for_silent_nodes
                                                                   : branch::held_for_silent_workers);
                     const auto needs_workers = x.why == hold::cause::too_few_workers;
                     world_.count(needs_workers ? branch::held_for_workers : branch::held_by_a_pause);
                     if (needs_workers)
                       world_.remind(reminder::hold);
                   },
                   [&](const form_generation& x) { form(x); },
                   [&](const start_more& x) { start_additional(std::min(x.count, coordinator_.missing())); },
                   [&](const fence_worker& x) {
                     if (x.reason.ends_with("in time"))
                       world_.count(branch::joiner_overdue);
                     if (action.why.find("another build") != std::string::npos ||
                         action.why.find("fingerprints differ") != std::string::npos)
                       world_.count(branch::process_refused);
                     world_.send_to_node(where_[x.worker], kill_process{x.worker});
                   },
                   [&](const give_up_node& x) { give_up(x.node); },
                   [&](const avoid_node& x) { leave_behind(x.node); },
                   [&](const restart_run&) { restart(); },
                   [&](const release_one& x) {
                     sent_away_[x.worker.value] = true;
                     tell(x.worker, release_worker{world_.run()});
                   },
                   [&](const save_state& x) {
                     if (world_.defect() == mutation::lets_all_go_unsaved)
                       return answer_report(x.worker, fail(x.reason.code, x.reason.message));
                     answer_report(x.worker, next_generation{save_and_leave{x.reason, x.step}});
                   },
                   [&](const abort_all& x) { abort_everybody(x.reason); },
                   [&](const release_all&) { release_everybody(); },
                   [&](const warn&) { warn_of(action.why); },
                   [&](const conclude& x) {
                     concluded_ = true;
                     if (aborted_all_ && x.status != run_status::failed)
                       world_.violate("a run that has failed ends well");
                     world_.concludes(x, action.why);
                   },
               },
               action.what);
  }
  if (is_in_grace() && !std::exchange(grace_running_, true))
    world_.remind(reminder::grace);
}

} // namespace troupe::simulation
