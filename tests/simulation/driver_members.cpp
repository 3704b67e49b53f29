#include "driver_model.hpp"

#include <troupe/actors/decisions/staging_place.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

// How the driver of a simulation hears of members that come, go and are silent.

namespace troupe::simulation {

using namespace actors;

// -- when members come and go -----------------------------------------------------------------------------------------

void driver_model::take(const request<regroup_report>& message) {
  if (answers_again(answered_reports_, message))
    return world_.count(branch::report_answered_again);
  auto report = message.message;
  // One that is sent again waits for its answer, as in `pending_replies`.
  if (const auto waiting = reports_.find(report.worker); waiting != reports_.end() && waiting->second == message.number)
    return;
  last_reports_.insert_or_assign(report.worker, report);
  // Without a place, also one that has followed a generation that is over.
  const auto is_joiner = std::ranges::find(places(), report.worker, &worker_place::worker) == places().end();
  if (staged_.erase(report.worker) > 0 && report.progress() == nullptr)
    world_.count(branch::staging_broken);
  if (world_.defect() == mutation::adopts_into_the_old_generation)
    report.generation = std::min(report.generation, coordinator_.generation());
  const auto is_stale =
      is_given_up(report.worker) || (!is_joiner && has_formed_ && report.generation != coordinator_.generation());
  if (is_given_up(report.worker))
    world_.count(branch::fenced_worker_spoke);
  if (auto owed = owed_.extract(report.worker); !owed.empty())
    return give(answered_reports_, report.worker, answer<next_generation>{message.number, owed.mapped()});
  reports_.insert_or_assign(report.worker, message.number);
  if (world_.defect() == mutation::hears_stale_reports)
    report.generation = coordinator_.generation();
  if (const auto* progress = report.progress(); progress != nullptr) {
    if (world_.defect() == mutation::lets_joiners_in_within_a_step && !report.is<worker_position::caught_up>())
      report.position = worker_position::between_steps{*progress};
    if (world_.defect() == mutation::restarts_beside_survivors)
      report.position = worker_position::without_state{};
  }
  act_on_speaker(is_stale, coordinator_.on_report(report, world_.clock()));
}

void driver_model::take(const caught_up& message) {
  act_on_speaker(is_given_up(message.worker), coordinator_.on_caught_up(message));
}

void driver_model::stage_state(const stage_joiners& group) {
  for (auto [rank, worker] : group.to_answer) {
    world_.count(branch::joiners_staged);
    staged_.insert(worker);
    answer_report(worker,
                  next_generation{place_in_staging_group(group.number, group.command, {{0, group.sources}}, rank, {})});
  }
}

void driver_model::answer_report(worker_id worker, const expected<next_generation>& what) {
  if (auto waiting = reports_.extract(worker); !waiting.empty())
    give(answered_reports_, worker, answer<next_generation>{waiting.mapped(), what});
}

void driver_model::abort_workers(generation_id generation, const error& reason) {
  for (auto worker : workers_)
    tell(worker, abort_training{world_.run(), generation, reason});
  answer_plans_of(generation, fail(reason.code, reason.message));
}

void driver_model::fail_pending(const error& reason) {
  answer_plans(fail(reason.code, reason.message));
  for (auto [worker, number] : std::exchange(reports_, {}))
    give(answered_reports_, worker, answer<next_generation>{number, fail(reason.code, reason.message)});
}

void driver_model::form(const form_generation& next) {
  // Joiners that did not get the state wait for a place again.
  for (const auto& place : places())
    if (!is_given_up(place.worker))
      was_member_[place.worker.value] = false;
  has_formed_ = true;
  lay_out(next.places);
  collectives_.begin({world_.run(), next.record.generation, layout_.world_size()});
  store_.begin(next.record.generation);
  for (auto& [worker, message] : layout_.member_places(next)) {
    was_member_[worker.value] = true;
    if (worker == next.decision.evaluation_source)
      world_.count(branch::evaluation_shared);
    if (world_.defect() == mutation::decides_before_all_have_reported && !reports_.contains(worker))
      owed_[worker] = next_generation{message};
    answer_report(worker, next_generation{message});
  }
  for (auto worker : next.released) {
    given_up_[worker.value] = true;
    answer_report(worker, next_generation{released{}});
    tell(worker, release_worker{world_.run()});
  }
}

/// What `mutation::decides_before_all_have_reported` does: it takes the last that was heard of a worker for its report.
void driver_model::guess_missing_reports() {
  for (const auto& place : places())
    if (!reports_.contains(place.worker) && !is_given_up(place.worker))
      if (auto guess = world_.guess_report_of(place.worker); guess && guess->generation == coordinator_.generation())
        return act(coordinator_.on_report(*guess, world_.clock()));
}

void driver_model::take(const worker_finished& message) {
  if (message.generation > coordinator_.generation())
    return;
  const auto is_stale = is_given_up(message.worker);
  // It could not save what it has.
  if (message.reason.code != errc::aborted)
    waiting_at_the_end_.erase(message.worker);
  if (!is_stale && !concluded_ && message.reason.code == errc::none)
    returned_.insert(message.worker);
  act_on_speaker(is_stale, coordinator_.on_finished(message));
}

void driver_model::take(const worker_ended& message) {
  std::erase(workers_, message.worker);
  given_up_[message.worker.value] = true;
  answer_report(message.worker, fail(errc::worker_lost, "its process has ended"));
  act(coordinator_.on_ended(message));
}

// -- nodes ------------------------------------------------------------------------------------------------------------

void driver_model::lose_node(std::uint32_t node, const std::string& why) {
  for (const auto& place : coordinator_.occupied())
    if (place.node == node)
      given_up_[place.worker.value] = true;
  act(coordinator_.on_node_lost(node, why));
}

void driver_model::node_is_silent(std::uint32_t node) {
  const auto why = "node " + std::to_string(node) + " is silent";
  silent_.emplace(node, world_.clock());
  if (world_.defect() != mutation::takes_silence_for_death)
    return act(coordinator_.on_nodes_silent({{node, why}}, world_.clock()));
  world_.gives_up(node, last_decided_, world_.clock() - silent_.at(node));
  give_up(node);
  lose_node(node, why);
}

void driver_model::workers_are_silent(std::uint32_t node, const std::vector<silent_worker>& workers) {
  std::set<worker_id> ids;
  for (const auto& each : workers)
    ids.insert(each.worker);
  for (const auto& [worker, why, kind] : workers)
    if (!is_given_up(worker) && silent_workers_.emplace(worker, world_.clock()).second &&
        world_.defect() == mutation::kills_silent_workers)
      act({{fence_worker{worker, why}, why}});
  std::erase_if(silent_workers_, [&](const auto& x) {
    const auto answers = where_[x.first] == node && !ids.contains(x.first);
    if (answers && !is_given_up(x.first))
      world_.count(branch::silent_worker_answered);
    return answers;
  });
  if (world_.defect() != mutation::kills_silent_workers)
    act(coordinator_.on_workers_silent(node, workers, world_.clock()));
}

void driver_model::give_up(std::uint32_t node) {
  nodes_[node] = node_state::fenced;
  // It may have answered since that was decided.
  if (silent_.erase(node) == 0)
    node_speaks(node);
  for (auto [worker, where] : where_)
    if (where == node)
      given_up_[worker.value] = true;
}

/// The members there are fenced: the data network is cut between them and the others.
void driver_model::leave_behind(std::uint32_t node) {
  world_.count(branch::side_left_behind);
  for (const auto& place : layout_.places())
    if (place.node == node)
      given_up_[place.worker.value] = true;
}

void driver_model::connection_lost(std::uint32_t node) {
  silent_.erase(node);
  nodes_[node] = node_state::away;
  lose_node(node, "node " + std::to_string(node) + " is gone");
}

void driver_model::node_speaks(std::uint32_t node) {
  if (silent_.erase(node) > 0) {
    world_.count(branch::silent_node_answered);
    act(coordinator_.on_node_answers(node, world_.clock()));
    return has_capacity();
  }
  if (nodes_[node] != node_state::fenced)
    return;
  world_.count(branch::fenced_node_readmitted);
  nodes_[node] = node_state::away;
  world_.send_to_node(node, kill_all{});
}

void driver_model::node_opens(std::uint32_t node) {
  if (nodes_[node] != node_state::away)
    return;
  nodes_[node] = node_state::open;
  has_capacity();
}

void driver_model::node_goes(std::uint32_t node) {
  if (nodes_[node] != node_state::open)
    return;
  nodes_[node] = node_state::leaving;
  world_.remind(reminder::drain);
  act(coordinator_.on_node_leaving(node, emptiest_node({}).has_value()));
}

void driver_model::has_capacity() {
  if (awaiting_capacity_)
    place_again();
  else
    act(coordinator_.on_capacity());
}

// -- nobody is left ---------------------------------------------------------------------------------------------------

void driver_model::restart() {
  world_.restarts();
  fail_pending({errc::aborted, "the run starts again from a checkpoint"});
  for (auto worker : std::exchange(workers_, {}))
    world_.send_to_node(where_[worker], kill_process{worker});
  commands_.clear();
  owed_.clear();
  returned_.clear();
  collectives_.begin({world_.run(), coordinator_.generation(), 0});
  store_.begin(coordinator_.generation());
  world_.send_to_driver_itself(attempt_closed{coordinator_.attempt()});
}

void driver_model::attempt_is_closed(std::uint32_t attempt) {
  if (concluded_ || attempt != coordinator_.attempt())
    return;
  restored_ = store_.latest();
  world_.count(restored_ ? branch::restart_from_checkpoint : branch::restart_without_checkpoint);
  awaiting_capacity_ = true;
  place_again();
}

void driver_model::place_again() {
  if (concluded_)
    return;
  std::vector<worker_place> places;
  for (std::uint32_t i = 0; i < first_size_; ++i)
    if (auto node = emptiest_node(places))
      places.push_back({{}, {}, *node, 0, 1});
  if (places.empty())
    return;
  // The workers of a node have neighbouring ranks.
  std::ranges::stable_sort(places, {}, &worker_place::node);
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    places[i].worker = {known_ + i};
    places[i].rank = {i};
  }
  awaiting_capacity_ = false;
  lay_out(places);
  coordinator_.on_restarted(places, std::nullopt, restored_ ? restored_->step : step_id{});
  start(places);
  world_.remind(reminder::start);
}

// -- users, and the clock ---------------------------------------------------------------------------------------------

void driver_model::ask(run_actions (run_coordinator::*what)()) {
  act((coordinator_.*what)());
}

void driver_model::resize(std::uint32_t workers) {
  first_size_ = workers;
  act(coordinator_.on_resize(workers));
}

void driver_model::stop(stop_request what) {
  const auto releases = released_all_;
  if (world_.defect() == mutation::stops_in_its_own_time)
    act(coordinator_.on_stop({}));
  else
    act(coordinator_.on_stop(what));
  if (what.immediately && !concluded_ && !releases)
    world_.violate("a run goes on after it was stopped at once");
}

void driver_model::group_hangs() {
  const auto actions = coordinator_.on_group_hang("no rank moves");
  if (!actions.empty())
    world_.count(branch::hang_found);
  act(actions);
}

void driver_model::reached(reminder what) {
  switch (what) {
  case reminder::tick:
    if (!concluded_)
      world_.remind(reminder::tick);
    for (auto worker : workers_)
      if (auto beat = world_.beat_of(worker)) {
        coordinator_.on_applied(worker, beat->committed);
        coordinator_.on_sign_of_life(worker, beat->progress, world_.clock());
      }
    for (std::uint32_t node = 0; node < nodes_.size() && !concluded_; ++node)
      if (const auto silent = world_.silent_workers_of(node))
        workers_are_silent(node, *silent);
    return act(coordinator_.on_tick(world_.clock()));
  case reminder::start:
    if (coordinator_.starting() && !coordinator_.occupied().empty())
      world_.count(branch::started_late);
    return act(coordinator_.on_start_timeout());
  case reminder::drain:
    return ask(&run_coordinator::on_drain_timeout);
  case reminder::hold:
    return ask(&run_coordinator::on_hold_timeout);
  case reminder::grace:
    if (is_in_grace())
      world_.count(branch::failing_in_grace);
    return ask(&run_coordinator::on_grace_timeout);
  }
}

} // namespace troupe::simulation
