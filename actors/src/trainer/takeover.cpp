#include "trainer/trainer_state.hpp"

#include <troupe/actors/collectives.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ranges>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How long to wait for the other nodes once one of them has living workers.
constexpr auto claim_patience = 1s;

/// How long to wait for the journal. Then actions are carried out although the journal lacks them.
constexpr auto journal_patience = 1s;

/// How long a superseded driver gives its connections to close.
constexpr auto closing_time = 500ms;

} // namespace

/// Only workers on caf-nodes with a driver grace period outlive the driver, so only such runs keep a journal.
bool trainer_state::keeps_journal() const {
  return !config_.cluster.is_embedded() && config_.failure.driver_grace > 0ms;
}

// -- taking over ------------------------------------------------------------------------------------------------------

void trainer_state::look_for_run() {
  request(actors_.files, caf::infinite, take_over_directory{})
      .then(
          [this](directory_taken_over& found) {
            if (!is<trainer_phase::looking>())
              return;
            if (!found.refusal.empty())
              notify(severity::warning,
                     fmt::format("a driver before this one has left workers, which end {}: {}",
                                 found.predecessor ? "now" : "with their grace period", found.refusal));
            nodes_->set_predecessor(std::move(found.predecessor));
            found.journal ? claim_workers(found) : gather();
          },
          [this](const caf::error& reason) { conclude_run(run_status::failed, from_caf(reason)); });
}

void trainer_state::gather() {
  phase_ = trainer_phase::gathering{};
  nodes_->dial_all();
}

void trainer_state::claim_workers(directory_taken_over& found) {
  auto& journal = *found.journal;
  record_ = {journal.run, config_.run, clock::now()};
  record_.set_path(found.directory.path);
  authority_.secret = journal.secret;
  authority_.claim = journal.claim;
  actors_.store = found.directory.store;
  state_ = std::move(*found.directory.state);
  if (!found.directory.warning.empty())
    notify(severity::warning, std::move(found.directory.warning));
  nodes_.emplace(*this, static_cast<node_events&>(*this), config_, services_, record_.run(), authority_.claim);
  nodes_->roster().resize_run(wanted_workers_);
  std::map<std::uint32_t, node_offer> offers;
  std::erase_if(journal.state.members, [&](formed_member& x) {
    const auto& node = journal.nodes[x.place.node];
    auto index = nodes_->roster().find(node.address);
    // The answer may come too late, and need not name a node whose workers live.
    if (!index && discovery_ && !node.address.empty())
      index = nodes_->add(node.address);
    if (discovery_)
      discovery_->naming().keep(node.address);
    if (!index) {
      notify(severity::warning,
             fmt::format("worker {} is on node {}, which is not among the nodes any more: the run goes on without it",
                         x.place.worker, node.address));
      return true;
    }
    x.place.node = *index;
    offers[*index] = node.offer;
    return false;
  });
  trainer_phase::claiming_workers now{.journal = std::move(journal), .since = clock::now(), .awaited = {}};
  for (const auto& [node, offer] : offers)
    now.awaited.insert(node);
  phase_ = std::move(now);
  nodes_->claim_all(authority_.secret, offers);
  decide_takeover();
}

void trainer_state::on_node_claimed(std::uint32_t node, const std::vector<worker_beat>& living) {
  if (auto* claiming = std::get_if<trainer_phase::claiming_workers>(&phase_)) {
    claiming->awaited.erase(node);
    claiming->living[node] = living;
    return decide_takeover();
  }
  if (!coordinator_ || is_concluding())
    return;
  for (const auto& beat : living)
    coordinator_->knows(beat.worker) ? coordinator_->on_applied(beat.worker, beat.committed)
                                     : nodes_->kill(node, beat.worker, "the run goes on without it");
  end_missing(node, living);
}

void trainer_state::decide_takeover() {
  auto* claiming = std::get_if<trainer_phase::claiming_workers>(&phase_);
  if (claiming == nullptr)
    return;
  const auto is_there = [&](const worker_beat& x) { return may_be_member(claiming->journal.state, x); };
  const auto anybody = std::ranges::any_of(claiming->living | std::views::values,
                                           [&](const auto& all) { return std::ranges::any_of(all, is_there); });
  const auto waited = clock::now() - claiming->since;
  if (anybody && (claiming->awaited.empty() || waited > claim_patience))
    return take_over();
  if (!anybody && (claiming->awaited.empty() || waited > config_.failure.driver_grace))
    return begin_anew();
  if (waited > claim_patience)
    announce(claiming->announced,
             fmt::format("waits for node {}, on which workers of the run may live, for {} s at most",
                         nodes_->name_of(*claiming->awaited.begin()),
                         std::chrono::duration_cast<std::chrono::seconds>(config_.failure.driver_grace).count()));
}

/// No worker of that run is left: it continues from its latest checkpoint.
void trainer_state::begin_anew() {
  nodes_->set_predecessor(run_proof{record_.run(), authority_.secret});
  if (discovery_)
    discovery_->naming().keep_none();
  record_ = {run_id{serialization::random_hex(16)}, config_.run, clock::now()};
  authority_.secret = serialization::random_hex(32);
  actors_.store = nullptr;
  phase_ = trainer_phase::looking{};
  request(actors_.files, caf::infinite, release_directory{record_.run(), authority_.secret})
      .then(
          [this] {
            if (!is<trainer_phase::looking>())
              return;
            phase_ = trainer_phase::gathering{};
            nodes_->begin_anew(record_.run());
          },
          [this](const caf::error& reason) { conclude_run(run_status::failed, from_caf(reason)); });
}

void trainer_state::take_over() {
  const auto now = clock::now();
  auto found = std::move(std::get<trainer_phase::claiming_workers>(phase_));
  const auto [state, others] = sort_survivors(std::move(found.journal.state), found.living);
  std::vector<worker_place> places;
  for (const auto& each : state.members)
    places.push_back(each.place);
  phase_ = trainer_phase::running{{}};
  // Later workers start with the same settings as the earlier ones.
  state_.step = state.began_at;
  record_.go_on_from(std::move(found.journal.history));
  record_.begin_from(state.began_at, state_.is_own() ? state_.directory() : std::string{}, state_.metrics,
                     state_.metrics_from);
  record_.set_earlier_time(state_.seconds);
  record_.skip_workers(worker_id{found.journal.next_worker});
  for (const auto& all : {places, others})
    for (const auto& place : all) {
      record_.on_inherited(place, nodes_->roster()[place.node].offer.host, nodes_->name_of(place.node));
      workers_.on_inherited(place.worker, place.node);
    }
  std::vector<worker_info> members;
  for (const auto& place : places)
    members.push_back(record_[place.worker]);
  actors_.collectives = spawn_collectives(system());
  coordinator_.emplace(run_coordinator::settings{record_.run(),
                                                 services_.build_id,
                                                 {},
                                                 config_.run.allow_mixed_hosts,
                                                 state_.resumed,
                                                 services_.compare_numerics,
                                                 config_.failure,
                                                 wanted_workers_,
                                                 state.began_at,
                                                 config_.run.start_timeout,
                                                 config_.run.allow_changed.libraries,
                                                 services_.in_one_process,
                                                 config_.run.transport},
                       state, now);
  for (const auto& each : members)
    coordinator_->introduce(each.worker, each.host, each.pid);
  if (auto laid_out = lay_out(places); !laid_out)
    return conclude_run(run_status::failed, std::move(laid_out.error()));
  record_.on_begin();
  metadata_.numerics = state.numerics;
  if (!state.plans.empty())
    set_plan(state.plans.back());
  anon_send(actors_.store, metadata_);
  for (const auto& [node, living] : found.living)
    for (const auto& beat : living)
      coordinator_->on_applied(beat.worker, beat.committed);
  record_.goodput().begin_after(coordinator_->furthest());
  const auto& run = record_.result();
  publish(run_started{run.run, run.name, run.path, std::move(members), run.resumed_from_step});
  notify(severity::note, fmt::format("takes the run over, which is after step {}", coordinator_->furthest()));
  // One that has not begun begins here; the others know better.
  for (const auto& place : places) {
    auto message = begin_message_for(place.worker);
    message.place = layout_.place_of(place, state.generation, state.attempt, {});
    workers_.begin(*this, place.worker, message);
  }
  workers_.inherit_commands(*this, record_.run(), state.commands, state.outstanding);
  nodes_->adopt_all(opening());
  act(coordinator_->on_adopted(others, now));
  for (const auto& place : places)
    if (!found.living.contains(place.node) && !found.awaited.contains(place.node))
      act(coordinator_->on_node_lost(place.node, "node " + nodes_->name_of(place.node) + " has ended its workers"));
  for (const auto& [node, living] : found.living)
    end_missing(node, living);
  if (!found.awaited.empty() && !is_concluding()) {
    std::map<std::uint32_t, std::string> silent;
    for (auto node : found.awaited)
      silent[node] = "node " + nodes_->name_of(node) + " does not answer";
    act(coordinator_->on_nodes_silent(silent, now));
  }
}

void trainer_state::end_missing(std::uint32_t node, const std::vector<worker_beat>& living) {
  // A copy: `ended` may change the places.
  const auto places = coordinator_->occupied();
  for (const auto& place : places)
    if (!is_concluding() && place.node == node && workers_.is_inherited(place.worker) &&
        !std::ranges::any_of(living, [&](const auto& x) { return x.worker == place.worker; }))
      ended({record_.run(), place.worker, never_started, "it ended while the run had no driver", {}});
}

// -- for the next driver ----------------------------------------------------------------------------------------------

run_journal trainer_state::journal_of(control_state state) const {
  run_journal result;
  result.run = record_.run();
  result.secret = authority_.secret;
  result.claim = authority_.claim;
  for (std::uint32_t i = 0; i < nodes_->roster().size(); ++i)
    result.nodes.push_back({nodes_->roster()[i].address, nodes_->roster()[i].offer});
  result.next_worker = record_.next_worker().value + spare_worker_ids;
  result.state = std::move(state);
  result.history = record_.history(coordinator_->failures());
  return result;
}

void trainer_state::write_journal() {
  auto state = journal_.gate.begin_write();
  if (!state)
    return;
  const auto is_done = std::make_shared<bool>(false);
  run_delayed(journal_patience, [this, is_done] {
    if (*is_done || is_concluding())
      return;
    notify(severity::warning, "the disk takes long to write the run's journal: training goes on without it");
    journal_.gate.on_late();
    carry_out_what_is_kept();
  });
  auto go_on = [this, is_done] {
    *is_done = true;
    journal_.gate.on_written();
    if (is_concluding())
      return;
    write_journal();
    carry_out_what_is_kept();
  };
  request(actors_.files, caf::infinite, actors::write_journal{journal_of(std::move(*state))})
      .then(
          [this, go_on] {
            journal_.problem.clear();
            go_on();
          },
          [this, go_on](const caf::error& reason) {
            auto ours = from_caf(reason);
            if (ours.code == errc::superseded)
              return on_superseded();
            announce(journal_.problem, ours.message + ": if this driver ends, none can take its workers over");
            go_on();
          });
}

void trainer_state::on_superseded() {
  if (is_concluding())
    return;
  phase_ = trainer_phase::concluding{};
  answer_wishes();
  record_.conclude(run_status::failed,
                   {errc::superseded, "another driver has taken the run over, and this one leaves it alone"});
  // Abandon the nodes first, so that no worker is refused while it trains for the new driver.
  nodes_->abandon();
  run_delayed(closing_time, [this] {
    request(actors_.files, caf::infinite, finish_run{record_.finish(clock::now()), true})
        .then([this](finished_run& x) { deliver(x.result); }, [this](const caf::error&) { deliver(record_.result()); });
  });
}

} // namespace troupe::actors
