#include "trainer/trainer_state.hpp"

#include <troupe/actors/collectives.hpp>
#include <troupe/actors/decisions/resource_sums.hpp>
#include <troupe/actors/error_conversion.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

using clock = std::chrono::steady_clock;

namespace {

/// After which time workers leave that could not be replaced, on a node that is named no more.
constexpr auto unnamed_patience = std::chrono::minutes{10};

} // namespace

void trainer_state::place_first() {
  auto* waiting = std::get_if<trainer_phase::gathering>(&phase_);
  if (waiting == nullptr || nodes_->roster().awaits_answers())
    return;
  if (discovery_ && !discovery_->naming().knows_nodes() && discovery_->naming().problem().empty())
    return;
  if (waiting->ask_again) {
    if (clock::now() >= *waiting->ask_again) {
      waiting->ask_again.reset();
      nodes_->ask_again(lessee());
    }
    return;
  }
  auto decision = nodes_->roster().place(node_state::offered, record_.next_worker());
  if (!decision && nodes_->roster().in_state(node_state::offered).empty() && discovery_)
    decision = fail(no_nodes());
  const auto all_are_there =
      nodes_->roster().in_state(node_state::away).empty() && nodes_->roster().in_state(node_state::dialling).empty();
  const auto waited = record_.age(clock::now());
  if (!decision) {
    if (auto holders = nodes_->roster().busy_with())
      return wait_for_resources(*waiting, {errc::busy, "other runs have what this one needs: " + *holders});
    if (!wanted_workers_.is_elastic() || (all_are_there && !discovery_) || waited > config_.scaling.wait_for_workers)
      return conclude_run(run_status::failed, std::move(decision.error()));
    record_.goodput().enter(time_use::awaiting_capacity, clock::now());
    return announce(waiting->announced, "waits for nodes: " + decision.error().message);
  }
  // More nodes may connect within `scale_up_wait`.
  if (decision->places.size() < wanted_workers_.max && waited < config_.scaling.scale_up_wait && !all_are_there)
    return;
  if (!decision->warning.empty())
    notify(severity::warning, decision->warning);
  if (is_nothing(resources_of_worker(config_.scaling)))
    return begin_with(std::move(decision->places));
  lease(std::move(decision->places), std::move(waiting->announced));
}

waiting_run trainer_state::lessee() const {
  return {{began_ms_, record_.run()}, config_.run.name, resources_of_worker(config_.scaling)};
}

void trainer_state::lease(std::vector<worker_place> places, std::string announced) {
  auto amounts = amounts_on_nodes(resources_of_worker(config_.scaling), places);
  phase_ = trainer_phase::leasing{std::move(places), std::move(announced)};
  nodes_->lease(std::move(amounts), lessee(), [this](const expected<void>& granted) { on_leased(granted); });
}

void trainer_state::on_leased(const expected<void>& granted) {
  auto* leasing = std::get_if<trainer_phase::leasing>(&phase_);
  if (leasing == nullptr)
    return;
  if (granted)
    return begin_with(std::move(leasing->places));
  if (granted.error().code != errc::busy)
    return conclude_run(run_status::failed, granted.error());
  auto announced = std::move(leasing->announced);
  wait_for_resources(phase_.emplace<trainer_phase::gathering>(std::move(announced)), granted.error());
}

void trainer_state::wait_for_resources(trainer_phase::gathering& phase, error why) {
  const auto& scaling = config_.scaling;
  const auto limit = wanted_workers_.is_elastic() ? std::max(scaling.wait_for_workers, scaling.wait_for_resources)
                                                  : scaling.wait_for_resources;
  const auto now = clock::now();
  if (record_.age(now) >= limit) {
    why.message += limit.count() > 0 ? fmt::format("; it has waited for {} s", limit.count() / 1000)
                                     : ". Wait for it with scaling.wait_for_resources (--wait), or ask for less";
    return conclude_run(run_status::failed, std::move(why));
  }
  announce(phase.announced, "waits: " + why.message);
  phase.ask_again = now + std::chrono::seconds{1};
}

void trainer_state::begin_with(std::vector<worker_place> places) {
  if (!lay_out_first(std::move(places)))
    return;
  record_.goodput().enter(time_use::starting, clock::now());
  phase_ = trainer_phase::claiming{};
  request(actors_.files, caf::infinite, claim_directory{})
      .then([this](claimed_directory& claimed) { begin_in(claimed); },
            [this](const caf::error& reason) { conclude_run(run_status::failed, from_caf(reason)); });
}

bool trainer_state::lay_out_first(std::vector<worker_place> places) {
  if (auto laid_out = lay_out(std::move(places)); !laid_out) {
    conclude_run(run_status::failed, std::move(laid_out.error()));
    return false;
  }
  if (auto warning = layout_.uneven_shards(); !warning.empty())
    notify(severity::warning, std::move(warning));
  return true;
}

void trainer_state::begin_in(claimed_directory& claimed) {
  record_.set_path(claimed.path);
  if (!claimed.state)
    return conclude_run(run_status::failed, std::move(claimed.state.error()));
  actors_.store = claimed.store;
  if (!is<trainer_phase::claiming>())
    return;
  if (!claimed.warning.empty())
    notify(severity::warning, std::move(claimed.warning));
  begin_from(std::move(*claimed.state));
  record_.set_earlier_time(state_.seconds);
  actors_.collectives = spawn_collectives(system());
  coordinate();
  phase_ = trainer_phase::opening{};
  nodes_->open(opening());
}

void trainer_state::coordinate() {
  coordinator_.emplace(run_coordinator::settings{
      record_.run(), services_.build_id, layout_.places(), config_.run.allow_mixed_hosts, state_.resumed,
      services_.compare_numerics, config_.failure, wanted_workers_, state_.step, config_.run.start_timeout,
      config_.run.allow_changed.libraries, services_.in_one_process, config_.run.transport});
}

void trainer_state::on_node_missing(error reason) {
  auto* opening = std::get_if<trainer_phase::opening>(&phase_);
  // Whoever lists nodes means these.
  if (opening == nullptr || !discovery_)
    return conclude_run(run_status::failed, std::move(reason));
  if (opening->is_moving)
    return;
  auto decision = nodes_->roster().place(node_state::open, record_.next_worker());
  if (!decision)
    return conclude_run(run_status::failed, {reason.code, fmt::format("{}\nthe other nodes cannot take its workers: {}",
                                                                      reason.message, decision.error().message)});
  notify(severity::warning, reason.message + "; other nodes take its workers");
  opening->is_moving = true;
  auto amounts = amounts_on_nodes(resources_of_worker(config_.scaling), decision->places);
  // What the nodes have leased for nothing.
  for (const auto& each : layout_.places())
    if (const auto state = nodes_->roster()[each.node].state; state == node_state::open || state == node_state::refused)
      amounts.try_emplace(each.node);
  nodes_->lease(std::move(amounts), lessee(),
                [this, places = std::move(decision->places)](const expected<void>& granted) mutable {
                  if (!is<trainer_phase::opening>())
                    return;
                  if (!granted)
                    return conclude_run(run_status::failed, granted.error());
                  move_to(std::move(places));
                });
}

void trainer_state::move_to(std::vector<worker_place> places) {
  if (!lay_out_first(std::move(places)))
    return;
  coordinate();
  std::get<trainer_phase::opening>(phase_).is_moving = false;
  for (const auto& each : layout_.places())
    if (nodes_->roster()[each.node].state != node_state::open)
      return on_node_missing(
          {errc::node_lost, fmt::format("the connection to node {} is gone", nodes_->name_of(each.node))});
  start_first();
}

run_nodes::opening trainer_state::opening() const {
  const auto self = caf::actor_cast<run_control>(caf::actor_cast<trainer_interface>(ctrl()));
  run_nodes::opening result{{}, self, actors_.collectives, actors_.store, actors_.files};
  auto& request = result.request;
  request.run = record_.run();
  request.run_name = config_.run.name;
  request.program_path = services_.program_path;
  request.build_id = services_.build_id;
  request.secret = authority_.secret;
  request.heartbeat_timeout_ms = static_cast<std::uint64_t>(config_.failure.heartbeat_timeout.count());
  request.driver_grace_ms = static_cast<std::uint64_t>(config_.failure.driver_grace.count());
  return result;
}

void trainer_state::begin_from(starting_state state) {
  state_ = std::move(state);
  for (const auto& each : state_.passed_over)
    notify(severity::warning, "a newer checkpoint was passed over: " + each);
  if (state_.is_own())
    notify(severity::note, fmt::format("resumes from step {} in {}", state_.step, state_.directory()));
  else if (const auto* other = std::get_if<beginning::other>(&state_.source))
    notify(severity::note, "begins with the state of " + other->directory);
  record_.set_programs(state_.programs);
  record_.set_loaded_from(state_.loaded_from);
  record_.begin_from(state_.step, state_.is_own() ? state_.directory() : std::string{}, state_.metrics,
                     state_.metrics_from);
}

expected<void> trainer_state::lay_out(std::vector<worker_place> places) {
  const auto otherwise = has_begun() ? run_layout::fallback::yes : run_layout::fallback::no;
  TROUPE_TRY(auto notice, layout_.lay_out(std::move(places), nodes_->roster().data_addresses(), otherwise));
  if (!notice.empty())
    notify(severity::note, std::move(notice));
  // Later, a node that others may not talk to has no capacity.
  return nodes_->roster().check_data_plane(layout_.places(),
                                           has_begun() ? node_roster::spread::places : node_roster::spread::offers);
}

void trainer_state::start(const std::vector<worker_place>& places) {
  after_in_attempt(config_.run.start_timeout, [this] { act(coordinator_->on_start_timeout()); });
  for (const auto& place : places) {
    record_.on_started(place, nodes_->roster()[place.node].offer.host, nodes_->name_of(place.node));
    workers_.on_started(place.worker, place.node);
  }
  const auto is_debugged = [this, &places](worker_id worker) {
    const auto place = std::ranges::find(places, worker, &worker_place::worker);
    return coordinator_->starting() && place->rank.value == config_.run.debug_rank;
  };
  for (auto& [node, message] : layout_.start_messages(record_.run(), config_.arguments, places)) {
    for (auto& each : message.workers)
      if (is_debugged(each.worker))
        each.environment.emplace(debugger_variable, "1");
    auto launched = message.workers;
    nodes_->start(node, std::move(message), [this, node = node, launched = std::move(launched)](const error& reason) {
      not_started(node, launched, reason);
    });
  }
}

void trainer_state::not_started(std::uint32_t node, const std::vector<worker_launch>& workers, const error& reason) {
  if (coordinator_->attempt() == 1 && coordinator_->starting())
    return conclude_run(run_status::failed,
                        {reason.code, fmt::format("node {}: {}", nodes_->name_of(node), reason.message)});
  for (const auto& each : workers)
    ended({record_.run(), each.worker, never_started, "it could not be started: " + reason.message, {}});
}

void trainer_state::on_node_open(std::uint32_t node) {
  if (is_concluding())
    return;
  if (has_begun()) {
    notify(severity::note, fmt::format("node {} has joined", nodes_->name_of(node)));
    return use_capacity();
  }
  start_first();
}

void trainer_state::start_first() {
  const auto is_open = [this](const worker_place& x) { return nodes_->roster()[x.node].state == node_state::open; };
  if (!std::ranges::all_of(layout_.places(), is_open))
    return;
  phase_ = trainer_phase::running{std::move(std::get<trainer_phase::opening>(phase_).leaving)};
  start(layout_.places());
}

void trainer_state::on_nodes_silent(const std::map<std::uint32_t, std::string>& nodes) {
  if (coordinator_ && has_begun()) {
    act(coordinator_->on_nodes_silent(nodes, clock::now()));
    return tell_whom_a_stop_waits_for();
  }
  // Before processes are started, the nodes' answers have deadlines of their own.
  for (const auto& [node, why] : nodes)
    notify(severity::warning, why);
}

void trainer_state::on_node_answers(std::uint32_t node) {
  // The workers' progress meanwhile is unknown, so it must not count as a hang.
  hangs_.clear();
  if (coordinator_)
    act(coordinator_->on_node_answers(node, clock::now()));
  if (has_begun())
    use_capacity();
}

/// Uses new capacity for missing workers.
void trainer_state::use_capacity() {
  is<trainer_phase::running>() ? act(coordinator_->on_capacity()) : place_again();
}

void trainer_state::on_node_lost(std::uint32_t node, const std::string& why) {
  if (auto* claiming = std::get_if<trainer_phase::claiming_workers>(&phase_)) {
    claiming->awaited.erase(node);
    claiming->living.erase(node);
    return decide_takeover();
  }
  workers_.on_node_gone(node);
  if (coordinator_)
    act(coordinator_->on_node_lost(node, why));
}

bool trainer_state::needs_node(std::uint32_t node, bool is_late) const {
  if (has_begun() || is_concluding())
    return false;
  if (nodes_->roster()[node].address.empty() || layout_.uses_node(node))
    return true;
  // An answer may name a node that has just gone.
  return is<trainer_phase::gathering>() && !discovery_ && !(is_late && wanted_workers_.is_elastic());
}

void trainer_state::node_leaves(const node_leaving& message) {
  auto node = nodes_ ? nodes_->find(current_sender()) : std::nullopt;
  if (!node || !is_of_run(message.run))
    return;
  notify(severity::warning,
         fmt::format("node {} is going away in {} s", nodes_->name_of(*node), message.grace_ms / 1000));
  // Naming it again does not bring it back.
  unnamed_.erase(*node);
  leave_node(*node, std::chrono::milliseconds{message.grace_ms / 2});
}

void trainer_state::node_drains(const node_drained& message) {
  auto node = nodes_ ? nodes_->find(current_sender()) : std::nullopt;
  if (!node || !is_of_run(message.run))
    return;
  const auto name = nodes_->name_of(*node);
  unnamed_.erase(*node);
  if (coordinator_->has_own_loop()) {
    // A worker of a custom loop cannot be replaced, and the node does not go away.
    nodes_->leave(*node);
    return notify(severity::warning, fmt::format("node {} is drained: its workers stay until the run ends, because no "
                                                 "worker can leave a custom loop; it gets no others",
                                                 name));
  }
  notify(severity::warning, fmt::format("node {} is drained: it gets no more workers", name));
  leave_node(*node, std::chrono::milliseconds{message.patience_ms});
}

void trainer_state::node_resumes(const node_resumed& message) {
  auto node = nodes_ ? nodes_->find(current_sender()) : std::nullopt;
  if (!node || !is_of_run(message.run))
    return;
  use_again(*node);
}

void trainer_state::use_again(std::uint32_t node) {
  if (auto* opening = std::get_if<trainer_phase::opening>(&phase_))
    opening->leaving.erase(node);
  if (auto* running = std::get_if<trainer_phase::running>(&phase_))
    running->leaving.erase(node);
  if (!nodes_->stay(node))
    return;
  notify(severity::note, fmt::format("node {} takes workers again", nodes_->name_of(node)));
  if (is<trainer_phase::running>())
    act(coordinator_->on_node_resumed(node));
  else if (has_begun())
    place_again();
}

void trainer_state::leave_node(std::uint32_t node, std::chrono::milliseconds patience) {
  after(patience, [this, node] {
    // It may have come back.
    if (coordinator_ && nodes_ && nodes_->roster()[node].state == node_state::leaving)
      act(coordinator_->on_drain_timeout());
  });
  if (auto* opening = std::get_if<trainer_phase::opening>(&phase_); opening != nullptr) {
    opening->leaving.insert(node);
    return;
  }
  nodes_->leave(node);
  act_on_leaving(node);
}

void trainer_state::take_nodes(const nodes_found& answer) {
  if (is_concluding() || !discovery_)
    return;
  auto change = discovery_->take(answer);
  for (auto& notice : change.notices)
    notify(severity::warning, std::move(notice));
  for (const auto& each : change.named) {
    nodes_->name(each);
    if (const auto node = nodes_->roster().find(each.address); node && unnamed_.erase(*node) > 0)
      use_again(*node);
  }
  for (const auto& address : change.left)
    if (const auto node = nodes_->roster().find(address))
      leave_unnamed(*node);
  place_first();
}

void trainer_state::leave_unnamed(std::uint32_t node) {
  nodes_->unname(node);
  const auto* opening = std::get_if<trainer_phase::opening>(&phase_);
  const auto state = nodes_->roster()[node].state;
  const auto has_or_gets_workers = state == node_state::open || state == node_state::opening;
  if (!coordinator_ || !has_or_gets_workers || (opening != nullptr && opening->leaving.contains(node)))
    return;
  unnamed_.insert(node);
  const auto name = nodes_->name_of(node);
  if (coordinator_->has_own_loop()) {
    nodes_->leave(node);
    return notify(severity::warning,
                  fmt::format("node {} is named no more: its workers stay until the run ends, because "
                              "no worker can leave a custom loop; it gets no others",
                              name));
  }
  notify(severity::warning, fmt::format("node {} is named no more: its workers move to other nodes, or leave", name));
  leave_node(node, unnamed_patience);
}

error trainer_state::no_nodes() const {
  const auto& naming = discovery_->naming();
  if (!naming.knows_nodes())
    return {errc::unreachable, naming.problem()};
  return {errc::unsatisfiable, "no node that is named can be used: `troupe nodes` says how each of them stands"};
}

void trainer_state::act_on_leaving(std::uint32_t node) {
  act(coordinator_->on_node_leaving(node, !place_more(config_.scaling, capacities(), 1).empty()));
}

std::vector<node_capacity> trainer_state::capacities() const {
  return nodes_->roster().capacities(coordinator_->occupied(), clock::now());
}

void trainer_state::restart(const std::string& why) {
  notify(severity::warning,
         fmt::format("{}: the run starts again from {}", why,
                     record_.result().latest_checkpoint.empty() ? "the beginning, because it has no checkpoint"
                                                                : "its latest checkpoint"));
  record_.on_restart(why, coordinator_->furthest(), clock::now());
  workers_.fail_pending({errc::aborted, "the run starts again from a checkpoint"});
  workers_.forget_attempt();
  for (auto worker : workers_.living())
    fence(worker, "the run starts again from a checkpoint");
  hangs_.clear();
  phase_ = trainer_phase::finding_state{};
  auto next = generation_started{record_.run(), coordinator_->generation(), 0};
  anon_send(actors_.collectives, next);
  request(actors_.store, caf::infinite, next)
      .then([this] { find_state_again(); }, [this](const caf::error&) { find_state_again(); });
}

void trainer_state::find_state_again() {
  if (!is<trainer_phase::finding_state>())
    return;
  request(actors_.files, caf::infinite, find_state{})
      .then(
          [this](starting_state& state) {
            if (!is<trainer_phase::finding_state>())
              return;
            begin_from(std::move(state));
            phase_ = trainer_phase::awaiting_capacity{};
            after_in_attempt(config_.scaling.wait_for_workers, [this] { give_up_waiting_for_capacity(); });
            place_again();
          },
          [this](const caf::error& reason) { retry_finding_state(from_caf(reason)); });
}

void trainer_state::retry_finding_state(const error& reason) {
  auto* finding = std::get_if<trainer_phase::finding_state>(&phase_);
  if (finding == nullptr || reason.code != errc::io_error)
    return conclude_run(run_status::failed, reason);
  announce(finding->announced, reason.message + ": it is tried again every second");
  after_in_attempt(std::chrono::seconds{1}, [this] { find_state_again(); });
}

void trainer_state::give_up_waiting_for_capacity() {
  if (is<trainer_phase::awaiting_capacity>())
    conclude_run(run_status::failed,
                 {errc::unsatisfiable,
                  fmt::format("no capacity for the run's workers within {} s (scaling.wait_for_workers): start its "
                              "caf-nodes and run it again; it continues from its latest checkpoint",
                              std::chrono::duration<double>(config_.scaling.wait_for_workers).count())});
}

bool trainer_state::awaits_gpus() const {
  return resources_of_worker(config_.scaling).gpus > 0 && std::ranges::any_of(workers_.living(), [this](auto x) {
           return nodes_->roster()[*workers_.node_of(x)].state == node_state::open;
         });
}

/// Readmits nodes that were avoided because of a broken data network, once their pause is over.
void trainer_state::end_cuts(clock::time_point now) {
  auto is_over = false;
  for (std::uint32_t node = 0; node < nodes_->roster().size(); ++node)
    is_over = nodes_->roster()[node].health.end_cut(now) || is_over;
  if (is_over && has_begun())
    use_capacity();
}

void trainer_state::place_again() {
  auto* waiting = std::get_if<trainer_phase::awaiting_capacity>(&phase_);
  if (waiting == nullptr || awaits_gpus())
    return;
  auto decision = nodes_->roster().place(node_state::open, record_.next_worker());
  if (!decision) {
    record_.goodput().enter(time_use::awaiting_capacity, clock::now());
    return announce(waiting->announced, "waits for nodes: " + decision.error().message);
  }
  record_.goodput().enter(time_use::restarting, clock::now());
  if (auto laid_out = lay_out(std::move(decision->places)); !laid_out)
    return conclude_run(run_status::failed, std::move(laid_out.error()));
  phase_ = trainer_phase::running{{}};
  coordinator_->on_restarted(layout_.places(), state_.resumed, state_.step);
  start(layout_.places());
}

void trainer_state::start_additional(std::uint32_t count) {
  std::vector<worker_place> places;
  for (auto node : place_more(config_.scaling, capacities(), count)) {
    auto offset = static_cast<std::uint32_t>(places.size());
    places.push_back(
        {worker_id{record_.next_worker().value + offset}, rank_id{layout_.world_size() + offset}, node, 0, 1});
  }
  if (places.empty())
    return;
  coordinator_->on_started(places, clock::now());
  start(places);
}

} // namespace troupe::actors
