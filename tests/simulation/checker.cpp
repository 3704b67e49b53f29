#include "simulation.hpp"
#include "simulation_limits.hpp"

#include <algorithm>
#include <set>
#include <utility>

// What must hold in every simulation, whatever happens in it.

namespace troupe::simulation {

using namespace actors;

void simulation::violate(const std::string& what) {
  if (!violation_)
    violation_ = what;
  note("VIOLATION: " + what);
}

void simulation::note(const std::string& what) {
  if (trace_ != nullptr)
    trace_->push_back(text(now_) + "  " + what);
}

void simulation::note(const worker_model& who, const std::string& what) {
  note(name_of(who) + " " + what);
}

void simulation::stands(worker_model& who, standing where) {
  if (trace_ != nullptr)
    note(who, std::string{to_string(where)} + " (generation " + text(who.generation().value) + ", rank " +
                  text(who.rank().value) + ", state of step " + text(who.state().step.value) + ")");
  for (std::size_t i = 0; i < incidents_.size(); ++i) {
    auto& each = incidents_[i];
    if (each.where != where || furthest_ < each.step)
      continue;
    if (each.occasion > 0) {
      --each.occasion;
      continue;
    }
    // It happens after this turn: nobody dies in the middle of one.
    each.where.reset();
    each.who = who.id();
    each.step = furthest_;
    each.turns = random_.below(3);
    committed_at_[furthest_] = std::max(committed_at_[furthest_], now_);
    return;
  }
}

void simulation::skips_loop(worker_model& who) {
  counts_.count(branch::loop_skipped);
  if (++skipped_[who.id()] >= program_.loops.size())
    violate(name_of(who) + " is told to skip more loops than the others can have completed");
}

void simulation::has_applied(worker_model& who, const number_chain& before, const number_chain& after) {
  if (who.has() == flaw::other_build)
    violate(name_of(who) + " is of another build, and trains");
  // One of another host may be alone.
  auto& hosts = hosts_[who.attempt()];
  hosts |= who.has() == flaw::other_numerics ? 2 : 1;
  if (hosts == 3)
    violate(name_of(who) + " trains beside one of another host");
  if (who.has() == flaw::other_plan && !driver_->coordinator().accepted().empty() &&
      driver_->coordinator().accepted().back().data_fingerprint == "data")
    violate(name_of(who) + " has another plan than the others, and trains");
  if (after != undisturbed_chain()[after.step.value])
    violate(name_of(who) + " has another state after step " + text(after.step.value) + " than the undisturbed run, " +
            (before == undisturbed_chain()[before.step.value] ? "and had the same before" : "and before, too"));
  if (after.step.value > furthest_) {
    furthest_ = after.step.value;
    committed_at_[furthest_] = now_;
  }
}

std::shared_ptr<data_plane> simulation::group_of(const group_place& place, const std::vector<rank_id>& joiners,
                                                 const exchange_result& found) {
  auto& group = groups_[place.generation];
  std::vector<worker_id> members;
  for (const auto& blob : found.blobs)
    members.push_back({static_cast<std::uint32_t>(std::stoul(blob))});
  if (group == nullptr) {
    auto receiving = std::uint32_t{0};
    for (auto rank : joiners)
      receiving |= std::uint32_t{1} << rank.value;
    group = std::make_shared<data_plane>(members, receiving);
    for (std::uint32_t rank = 0; rank < members.size(); ++rank)
      if (find(members[rank]) == nullptr)
        group->close({rank}, peers_are_noticed_ ? &random_ : nullptr);
    if (!far_side_.empty())
      cut_between_sides(*group);
  }
  if (group->members() != members || place.rank.value >= members.size()) {
    violate("generation " + text(place.generation.value) + " has two groups");
    return nullptr;
  }
  return group;
}

std::shared_ptr<staging_stream> simulation::stream_of(generation_id generation, std::uint64_t number,
                                                      std::uint32_t sources) {
  auto& stream = streams_[{generation, number}];
  if (stream == nullptr) {
    stream = std::make_shared<staging_stream>();
    stream->sources = sources;
  }
  if (stream->sources != sources)
    violate("the members of a staging group disagree about its size");
  return stream;
}

void simulation::violates(const worker_model& who, const std::string& what) {
  violate(name_of(who) + " " + what);
}

void simulation::forms(const form_generation& next) {
  counts_.count(branch::regroup);
  // All that had applied a step may be gone with the driver, before another heard that it is to apply it. A joiner that
  // followed them has no place, and begins anew.
  const auto is_forgotten =
      std::exchange(formed_by_, drivers_) != drivers_ && next.decision.commit_point.value + 1 == commit_point_.value &&
      std::ranges::none_of(living_, [this](auto id) {
        const auto& who = processes_[id]->model;
        return who.has_state() && who.committed() >= commit_point_ && !driver_->is_given_up(who.id()) &&
               !driver_->is_told_lost(who.id()) && !driver_->is_silent(who.node());
      });
  if (next.decision.commit_point < commit_point_ && !is_forgotten)
    violate("step " + text(next.decision.commit_point.value) + " is the commit point, and step " +
            text(commit_point_.value) + " was before");
  commit_point_ = next.decision.commit_point;
  auto is_behind = false;
  for (const auto& place : next.places) {
    auto* who = find(place.worker);
    if (driver_->is_given_up(place.worker))
      violate("worker " + text(place.worker.value) + " has been given up, and gets a place");
    if (who != nullptr && who->model.is_caught_up() &&
        std::ranges::find(next.joiners, place.worker) == next.joiners.end()) {
      counts_.count(branch::follower_let_in);
      if (who->model.committed() != commit_point_)
        violate(name_of(who->model) + " has followed the others to step " + text(who->model.committed().value) +
                ", and they are at step " + text(commit_point_.value));
    }
    if (who == nullptr || !who->model.has_state())
      continue;
    is_behind = is_behind || who->model.committed() < commit_point_;
    if (who->model.committed() > commit_point_)
      violate(name_of(who->model) + " has committed step " + text(who->model.committed().value) + ", and step " +
              text(commit_point_.value + 1) + " is to be computed again");
    if (who->model.committed() < commit_point_ && who->model.reduced() < commit_point_)
      violate(name_of(who->model) + " is to apply step " + text(commit_point_.value) + " without its gradient");
    if (!next.joiners.empty() && who->model.state().step != commit_point_)
      violate(name_of(who->model) + " is to give a joiner the state of step " + text(commit_point_.value) +
              ", and has that of step " + text(who->model.state().step.value));
  }
  for (const auto& before : driver_->places()) {
    auto* who = find(before.worker);
    if (who != nullptr && !who->model.has_state() && !driver_->is_given_up(before.worker) &&
        std::ranges::find(next.places, before.worker, &worker_place::worker) == next.places.end())
      counts_.count(branch::joiner_put_off);
  }
  if (is_behind)
    counts_.count(branch::all_apply_what_one_has_passed);
  counts_.count(branch::step_computed_again, next.record.steps_redone);
  if (!next.joiners.empty())
    counts_.count(branch::joiners_let_in);
  if (!next.released.empty())
    counts_.count(branch::leaving_worker_released);
  if (next.places.size() == 1)
    counts_.count(branch::down_to_one);
}

void simulation::restarts() {
  commit_point_ = {};
  for (auto id : living_) {
    const auto& who = processes_[id]->model;
    if (!who.has_state() || who.has_failed() || who.attempt() + 1 != driver_->coordinator().attempt() ||
        driver_->is_told_lost(who.id()))
      continue;
    // Those that had the state, too, have died since: it is gone with them, as the exception's own process.
    if (driver_->is_let_go(who.id()))
      continue;
    if (!driver_->is_sent_away(who.id()))
      violate("the run goes back to a checkpoint, and " + name_of(who) + " lives and has the state");
    // Who was to go because fewer are wanted stays when the others go.
    if (!nodes_[who.node()].leaves)
      violate("all are sent away, and the node of " + name_of(who) + " stays");
    // All go with their nodes: nothing that was done is lost.
    counts_.count(branch::all_left_with_their_nodes);
    const auto& saved = std::as_const(*driver_).store().latest();
    if (!saved || saved->step < who.state().step)
      violate("all workers are sent away, and step " + text(who.state().step.value) + " is in no checkpoint");
  }
}

void simulation::gives_up(std::uint32_t node, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) {
  // What its workers have is of no use to a run that fails.
  if (driver_->is_in_grace() || driver_->coordinator().over())
    return;
  check_given_up([node](const worker_model& who) { return who.node() == node; }, attempt, silent_for,
                 "node " + text(node));
}

void simulation::gives_up(worker_id worker, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) {
  // What it has is of no use if the run fails, or if it has failed itself, whether or not it has heard the answer.
  const auto* who = find(worker);
  if (!driver_->coordinator().goes_on() || who == nullptr || who->model.stands() == standing::finished ||
      driver_->is_let_go(worker))
    return;
  check_given_up([worker](const worker_model& who) { return who.id() == worker; }, attempt, silent_for,
                 "worker " + text(worker.value));
}

void simulation::check_given_up(const std::function<bool(const worker_model&)>& is_given_up, std::uint32_t attempt,
                                std::chrono::steady_clock::duration silent_for, const std::string& name) {
  const auto counts = [&](const worker_model& who) {
    return who.attempt() == attempt && !driver_->is_told_lost(who.id()) &&
           (who.has_state() || who.is_caught_up() || who.stands() == standing::finished);
  };
  // Also those that have ended, and whose end the driver has yet to hear of.
  const auto goes_on = !driver_->returned().empty() || std::ranges::any_of(processes_, [&](const auto& each) {
    return each != nullptr && !is_given_up(each->model) && !driver_->is_silent(each->model.node()) &&
           !driver_->is_silent(each->model.id()) && counts(each->model);
  });
  // Before the first step nothing can be lost: a member that has yet to hear of the beginning is as good. A joiner that
  // has caught up is no member before it has a place: if the others have formed a generation without it, it begins
  // anew.
  const auto has_state = std::ranges::any_of(living_, [&](auto id) {
    const auto& who = processes_[id]->model;
    return is_given_up(who) && counts(who) && who.committed() > who.restored() &&
           (who.has_state() || who.stands() == standing::finished || driver_->was_member(who.id()));
  });
  if (has_state && !goes_on && silent_for < unreachable_after_)
    violate(name + " is given up, and nobody else has the state");
  if (has_state && !goes_on)
    counts_.count(branch::silent_for_too_long);
}

std::optional<std::vector<silent_worker>> simulation::silent_workers_of(std::uint32_t node) {
  const auto& self = nodes_[node];
  if (!self.lives || self.frozen || self.cut || driver_->is_silent(node) || driver_->is_fenced(node) ||
      driver_->is_away(node))
    return std::nullopt;
  std::vector<silent_worker> result;
  for (auto id : living_)
    if (const auto& each = *processes_[id]; each.model.node() == node && each.model.is_frozen() &&
                                            each.model.stands() != standing::starting && each.silent_from <= clock())
      result.push_back({worker_id{id}, "its process is stopped"});
  return result;
}

void simulation::tells_to_stop(const std::vector<worker_id>& whom) {
  stop_asked_after_ = furthest_;
  for (auto worker : whom)
    stop_heard_after_[worker.value] = steps_;
}

/// Whether a worker did many more steps although it had heard of the stop. One that is alone may do many before a
/// message reaches it.
bool simulation::has_ignored_the_stop() const {
  return stop_asked_after_ && std::ranges::any_of(driver_->returned(), [this](worker_id x) {
           const auto heard = stop_heard_after_.find(x.value);
           return (heard == stop_heard_after_.end() ? *stop_asked_after_ : heard->second) + 6 < steps_;
         });
}

void simulation::concludes(const conclude& x, const std::string&) {
  if (conclusion_)
    return violate("the run ends twice");
  conclusion_ = x;
  const auto& run = driver_->coordinator();
  if ((x.status == run_status::failed) != (x.reason.code != errc::none && x.reason.code != errc::stopped))
    violate("the run ends for a reason that is none: " + x.reason.message);
  if (x.status == run_status::failed)
    check_saved();
  if (x.status == run_status::failed)
    return check_cause(x);
  if (x.status == run_status::stopped && !stop_asked_)
    return violate("the run stops, and nobody has asked for it");
  if (x.status == run_status::stopped)
    counts_.count(branch::stopped);
  if (x.status == run_status::completed && has_ignored_the_stop())
    violate("the run does all its steps although it was to stop after step " + text(*stop_asked_after_));
  if (x.status == run_status::stopped && run.state_sha256().empty())
    return;
  check_failures();
  check_results();
}

/// What a member could save when the run failed is in a checkpoint, unless it was lost before it could be asked.
void simulation::check_saved() {
  const auto& saved = driver_->store().latest();
  const auto is_reached = [this](const process& x) {
    const auto& home = nodes_[x.model.node()];
    return x.model.lives() && !x.model.is_frozen() && !x.is_cut_off && home.lives && !home.frozen && !home.cut;
  };
  if (stop_asked_)
    return;
  // Nobody can apply a step whose body throws.
  const auto cannot_apply = [this](step_id step) {
    return program_.throws && program_.throws->step == step &&
           program_.throws->where == program::exception::place::behind_barrier;
  };
  // One that threw while others had the state was let go, and those may have died since.
  for (const auto& [worker, step] : driver_->waiting_at_the_end())
    // One whose body evaluates has no state to save: it is in the middle of a body that cannot go on without a group.
    if (is_reached(*processes_[worker.value]) && !driver_->is_let_go(worker) && !program_.evaluates_in(step) &&
        (saved ? saved->step.value : 0) + (cannot_apply(step) ? 1 : 0) < step.value)
      return violate("the run fails, and the state of step " + text(step.value) + " is lost, which worker " +
                     text(worker.value) + " has");
}

/// The cause that is named is one, and there was one.
void simulation::check_cause(const conclude& x) {
  const auto& all = driver_->coordinator().failures();
  auto is_cause = [](const failure_record& each) { return each.reason.code != errc::aborted && !each.consequence; };
  const auto named =
      std::ranges::find_if(all, [&](const auto& each) { return each.reason == x.reason && !each.consequence; });
  if (named == all.end())
    return violate("the run ends by what is no failure: " + x.reason.message);
  if (!is_cause(*named) && std::any_of(named, all.end(), is_cause))
    violate("the run ends by a consequence: " + x.reason.message);
  if (std::any_of(named + 1, all.end(), [&](const auto& each) { return !is_cause(each) && !each.consequence; }))
    violate("a consequence is told as a cause");
  if (!is_ground(x.reason))
    violate("the run fails: " + x.reason.message);
}

/// Whether anything has happened that a run may end by for this reason.
bool simulation::is_ground(const error& reason) const {
  const auto says = [&](const char* what) { return reason.message.find(what) != std::string::npos; };
  const auto few_are_allowed = most_failures_ < plenty;
  if (says("failure.max_failures"))
    counts_.count(branch::too_many_failures);
  if (throws_again_ && reason.code == errc::user_error)
    counts_.count(branch::ended_by_exception);
  if (says("scaling.wait_for_workers"))
    counts_.count(branch::held_too_long);
  if (says("ends at step"))
    counts_.count(branch::results_differ);
  if (reason.code == errc::user_error)
    return throws_again_ || (has_thrown_ && few_are_allowed);
  if (reason.code == errc::program_mismatch)
    return flaw_ == flaw::other_build && says("runs build another");
  if (reason.code == errc::mismatch)
    return (flaw_ == flaw::other_numerics && says("computes differently")) ||
           (flaw_ == flaw::other_plan && says("data fingerprint")) ||
           (flaw_ == flaw::other_result && says("ends at step"));
  if (reason.code == errc::worker_lost)
    return few_are_allowed || has_exited_;
  if (reason.code == errc::timed_out)
    return few_are_allowed || (was_held_ && says("scaling.wait_for_workers")) ||
           (has_hung_ && says("did not join in time")) || (group_hangs_ > 1 && says("no rank moves"));
  // The last failure that the run survived tells most of a group that is lost too often.
  const auto is_lost = reason.code == errc::node_lost || reason.code == errc::aborted ||
                       (reason.code == errc::unreachable && says(actors::reason_of_cut));
  return is_lost && few_are_allowed;
}

/// What is told of failures is what has happened, once, and no more of it than is allowed without a new step.
void simulation::check_failures() {
  step_id reached;
  // Since that step.
  std::set<generation_id> broken;
  std::vector<worker_id> lost;
  const auto& all = driver_->coordinator().failures();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& each = all[i];
    const auto code = each.reason.code;
    const auto* who = each.worker.value < processes_.size() ? processes_[each.worker.value].get() : nullptr;
    const auto is_loss = code == errc::worker_lost || code == errc::node_lost;
    const auto is_refusal = (code == errc::program_mismatch || code == errc::mismatch) && flaw_ != flaw::none;
    // It was given up by the driver before.
    const auto is_old = code == errc::stale_generation && drivers_ > 1;
    const auto is_cut_off = code == errc::unreachable && who != nullptr && driver_->is_told_lost(each.worker);
    if (!is_loss && !is_refusal && !is_old && !is_cut_off && code != errc::timed_out &&
        (code != errc::user_error || !has_thrown_))
      violate("a failure is told that was none: " + each.reason.message);
    if (is_loss && std::ranges::find(lost, each.worker) != lost.end())
      violate("worker " + text(each.worker.value) + " is told to be lost twice");
    if (is_loss)
      lost.push_back(each.worker);
    if (who != nullptr && who->model.lives() && code == errc::worker_lost)
      violate(name_of(who->model) + " lives, and is told to have failed: " + each.reason.message);
    const auto had_returned = is_loss && who != nullptr && who->model.stands() == standing::finished;
    if (driver_->furthest_at_failure(i) > std::exchange(reached, std::max(reached, driver_->furthest_at_failure(i))))
      broken.clear();
    if ((code == errc::worker_lost || code == errc::user_error) && driver_->was_member(each.worker) && !had_returned &&
        !driver_->was_without_state(each.worker))
      broken.insert(each.generation);
    if (broken.size() > most_failures_)
      return violate("the run survives " + text(broken.size()) + " failures without a new step, and " +
                     text(most_failures_) + " are allowed; the last is of worker " + text(each.worker.value) +
                     " in generation " + text(each.generation.value) + ", after step " + text(reached.value));
  }
}

/// A run that ends well ends with the undisturbed state.
void simulation::check_results() {
  const auto& run = driver_->coordinator();
  const auto step = run.final_step();
  const auto& last = program_.loops.back();
  if (conclusion_->status == run_status::completed && step.value != last.end)
    violate("the run is complete after step " + text(step.value) + " of " + text(last.end));
  if (conclusion_->status == run_status::stopped && program_.loops.size() > 1 &&
      step.value <= program_.loops[program_.loops.size() - 2].end)
    counts_.count(branch::stopped_before_a_later_loop);
  if (conclusion_->status == run_status::completed && has_thrown_) {
    counts_.count(branch::exception_survived);
    if (program_.throws->how == program::exception::recurrence::always && throws_again_ && members_threw_ > 1)
      violate("the run is complete although each member throws");
  }
  const auto others = std::ranges::count_if(
      driver_->returned(), [this](worker_id x) { return processes_[x.value]->model.has() == flaw::other_result; });
  if (others > 0 && static_cast<std::size_t>(others) < driver_->returned().size())
    violate("replicas differ at the end, and the run ends well");
  const auto& expected = undisturbed_chain()[step.value];
  if (run.state_sha256() != result_of(expected, flaw::none) &&
      (flaw_ != flaw::other_result || run.state_sha256() != result_of(expected, flaw_)))
    violate("the run ends with another state than the undisturbed one");
}

/// Whatever is still said, or wanted, has no effect any more.
void simulation::outlive_the_end() {
  if (!active_.empty())
    counts_.count(branch::spoken_after_the_end);
  for (int i = 0; i < 40 && take_random_turn(); ++i)
    ++now_;
  for (auto id : std::vector{living_})
    kill(*processes_[id], 128 + 9);
  for (int i = 0; i < 40 && take_random_turn(); ++i)
    ++now_;
  for (auto wish : {&run_coordinator::on_capacity, &run_coordinator::on_checkpoint_request, &run_coordinator::on_pause,
                    &run_coordinator::on_resume})
    driver_->ask(wish);
  for (auto each : {reminder::tick, reminder::start, reminder::drain, reminder::hold, reminder::grace})
    driver_->reached(each);
  driver_->resize(2);
  driver_->group_hangs();
  driver_->stop({false});
  driver_->stop({true});
}

std::optional<regroup_report> simulation::guess_report_of(worker_id worker) {
  auto* who = find(worker);
  if (who == nullptr || !who->model.has_state())
    return std::nullopt;
  regroup_report result;
  result.run = run_;
  result.worker = worker;
  result.generation = who->model.generation();
  result.position = worker_position::in_step{{who->model.committed(), 0, who->model.evaluations()},
                                             who->model.reduced().value == who->model.committed().value + 1};
  return result;
}

} // namespace troupe::simulation
