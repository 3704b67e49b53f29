#include "driver_model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::simulation {

using namespace actors;

namespace {

/// Other hosts do not matter here.
std::vector<std::string> addresses_of(std::size_t nodes) {
  return std::vector<std::string>(nodes);
}

} // namespace

driver_model::driver_model(driver_environment& world, const run_coordinator::settings& settings, std::uint32_t nodes)
    : world_(world),
      coordinator_(settings),
      store_(world),
      collectives_(world),
      nodes_(nodes, node_state::open),
      first_size_(static_cast<std::uint32_t>(settings.places.size())) {
  scaling_config scaling;
  scaling.shards = shards;
  layout_ = {scaling, transport_mode::tcp};
  lay_out(settings.places);
}

driver_model::driver_model(const driver_model& before, const run_coordinator::settings& settings,
                           const std::map<std::uint32_t, std::vector<worker_beat>>& living)
    : world_(before.world_),
      coordinator_(settings, sort_survivors(before.kept_state(), living).state, world_.clock()),
      store_(world_),
      collectives_(world_),
      nodes_(before.nodes_.size(), node_state::open),
      first_size_(before.first_size_),
      known_(before.journal_->next_worker),
      given_up_(known_, true),
      sent_away_(before.sent_away_),
      let_go_(before.let_go_),
      was_member_(known_, false),
      journal_(before.journal_),
      has_formed_(false) {
  scaling_config scaling;
  scaling.shards = shards;
  layout_ = {scaling, transport_mode::tcp};
  store_.find(before.store_);
  // What the attempt began with.
  if (const auto began_at = journal_->state.began_at; began_at > step_id{})
    restored_ = undisturbed_chain()[began_at.value];
  sent_away_.resize(known_, false);
  let_go_.resize(known_, false);
  // It may end before it has written anything but its claim.
  journal_->next_worker += spare_worker_ids;
}

control_state driver_model::kept_state() const {
  auto state = journal_->state;
  if (world_.defect() == mutation::adopts_into_the_old_generation)
    --state.generation.value;
  return state;
}

/// As `trainer_state::take_over` does it.
void driver_model::go_on(const std::map<std::uint32_t, std::vector<worker_beat>>& living) {
  const auto [state, others] = sort_survivors(kept_state(), living);
  world_.count(branch::taken_over);
  std::vector<worker_place> places;
  for (const auto& each : state.members) {
    const auto& place = places.emplace_back(each.place);
    where_[place.worker] = place.node;
    given_up_[place.worker.value] = false;
    was_member_[place.worker.value] = true;
    workers_.push_back(place.worker);
    inherited_.insert(place.worker);
    unsent_[place.worker];
  }
  for (const auto& place : others)
    where_[place.worker] = place.node;
  lay_out(places);
  last_begun_ = last_decided_ = state.attempt;
  for (const auto& place : places) {
    auto message = begin_message();
    message.place = layout_.place_of(place, state.generation, state.attempt, {});
    tell(place.worker, std::move(message));
  }
  auto commands = std::vector<control_command>{};
  for (auto number = std::uint64_t{1}; number <= state.commands - state.outstanding.size(); ++number)
    commands.push_back({world_.run(), number, regroup_command{}});
  commands.insert(commands.end(), state.outstanding.begin(), state.outstanding.end());
  for (const auto& command : commands) {
    commands_.push_back(command);
    for (auto worker : workers_)
      tell(worker, command);
  }
  for (const auto& [node, beats] : living)
    for (const auto& beat : beats)
      coordinator_.on_applied(beat.worker, beat.committed);
  world_.remind(reminder::tick);
  act(coordinator_.on_adopted(others, world_.clock()));
  for (const auto& [node, beats] : living)
    end_missing(node, beats);
  for (std::uint32_t node = 0; node < nodes_.size() && !concluded_; ++node)
    if (!living.contains(node))
      node_is_silent(node);
}

void driver_model::end_missing(std::uint32_t node, const std::vector<worker_beat>& living) {
  for (const auto& place : coordinator_.occupied())
    if (!concluded_ && place.node == node && inherited_.contains(place.worker) &&
        std::ranges::find(living, place.worker, &worker_beat::worker) == living.end())
      take(worker_ended{world_.run(), place.worker, never_started, "it ended while the run had no driver", {}});
}

/// A node that did not answer when the run was taken over does now.
void driver_model::node_claimed(std::uint32_t node, const std::vector<worker_beat>& living) {
  if (nodes_[node] == node_state::fenced || nodes_[node] == node_state::away)
    return node_speaks(node);
  for (const auto& beat : living)
    if (coordinator_.knows(beat.worker))
      coordinator_.on_applied(beat.worker, beat.committed);
    else
      world_.send_to_node(node, kill_process{beat.worker});
  end_missing(node, living);
  node_speaks(node);
}

void driver_model::tell(worker_id worker, packet what) {
  if (auto waiting = unsent_.find(worker); waiting != unsent_.end())
    waiting->second.push_back(std::move(what));
  else
    world_.send_to_actor(worker, std::move(what));
}

void driver_model::begin() {
  start(layout_.places());
  world_.remind(reminder::tick);
  world_.remind(reminder::start);
}

bool driver_model::is_given_up(worker_id worker) const {
  return !coordinator_.knows(worker) || given_up_[worker.value];
}

void driver_model::lay_out(std::vector<worker_place> places) {
  if (auto done = layout_.lay_out(std::move(places), addresses_of(nodes_.size()), run_layout::fallback::yes); !done)
    world_.violate("the places cannot be laid out: " + done.error().message);
}

void driver_model::start(const std::vector<worker_place>& places) {
  for (const auto& place : places) {
    known_ = std::max(known_, place.worker.value + 1);
    given_up_.resize(known_, false);
    sent_away_.resize(known_, false);
    let_go_.resize(known_, false);
    was_member_.resize(known_, false);
    where_[place.worker] = place.node;
    world_.send_to_node(place.node, start_process{place});
  }
}

std::optional<std::uint32_t> driver_model::emptiest_node(const std::vector<worker_place>& more) const {
  std::vector<std::uint32_t> load(nodes_.size());
  if (!awaiting_capacity_)
    for (const auto& place : coordinator_.occupied())
      ++load[place.node];
  for (const auto& place : more)
    ++load[place.node];
  std::optional<std::uint32_t> best;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node)
    if (nodes_[node] == node_state::open && !silent_.contains(node) && (!best || load[node] < load[*best]))
      best = node;
  return best;
}

void driver_model::start_additional(std::uint32_t count) {
  std::vector<worker_place> places;
  for (std::uint32_t i = 0; i < count; ++i)
    if (auto node = emptiest_node(places))
      places.push_back({worker_id{known_ + i}, rank_id{layout_.world_size() + i}, *node, 0, 1});
  if (places.empty())
    return;
  coordinator_.on_started(places, world_.clock());
  start(places);
}

// -- workers begin ----------------------------------------------------------------------------------------------------

void driver_model::take(const worker_ready& message) {
  if (auto waiting = unsent_.extract(message.worker); !waiting.empty()) {
    for (auto& each : waiting.mapped())
      world_.send_to_actor(message.worker, std::move(each));
    return act(coordinator_.on_ready(message));
  }
  if (!coordinator_.expects(message.worker))
    return;
  if (std::ranges::find(workers_, message.worker) == workers_.end())
    workers_.push_back(message.worker);
  act(coordinator_.on_ready(message));
}

begin_work driver_model::begin_message() const {
  return {{}, restored_.value_or(number_chain{}), {}};
}

generation_started driver_model::generation_now() const {
  return {world_.run(), coordinator_.generation(), layout_.world_size()};
}

void driver_model::begin_all_workers() {
  collectives_.begin(generation_now());
  for (const auto& place : layout_.places()) {
    auto message = begin_message();
    message.place = layout_.place_of(place, coordinator_.generation(), coordinator_.attempt(), {});
    was_member_[place.worker.value] = true;
    tell(place.worker, std::move(message));
  }
}

void driver_model::begin_joiner_of(const begin_joiner& joiner) {
  const auto worker = joiner.worker;
  auto message = begin_message();
  message.place.attempt = coordinator_.attempt();
  if (world_.defect() != mutation::tells_joiners_no_evaluations)
    message.earlier_evaluations = joiner.evaluations;
  tell(worker, std::move(message));
  if (world_.defect() == mutation::joiners_miss_commands)
    return;
  for (const auto& command : commands_)
    tell(worker, command);
}

void driver_model::take(const request<run_plan>& message) {
  if (answers_again(answered_plans_, message))
    return;
  auto plan = message.message;
  if (const auto waiting = plans_.find(plan.worker);
      waiting != plans_.end() && waiting->second.number == message.number)
    return;
  if (world_.defect() == mutation::compares_no_plans)
    plan.data_fingerprint = "data";
  auto refuse = [&](errc code, const char* why) {
    give(answered_plans_, plan.worker, answer<plan_accepted>{message.number, fail(code, why)});
  };
  if (coordinator_.over())
    return refuse(errc::stale_generation, "this run has ended");
  auto is_joiner = plan.generation == generation_id{};
  if (!is_joiner && plan.generation != coordinator_.generation())
    return refuse(errc::stale_generation, "this generation is over");
  if (!coordinator_.training() && !(is_joiner && coordinator_.goes_on()))
    return refuse(errc::aborted, "the run is ending");
  plans_.insert_or_assign(plan.worker, waiting_plan{message.number, plan.generation});
  act(coordinator_.on_plan(plan, world_.clock()));
}

void driver_model::metadata_is_stored(generation_id generation) {
  // The plans of that generation have been answered when it was given up; those that wait now are of another.
  if (generation == coordinator_.generation())
    answer_plans_of(generation, plan_accepted{generation});
}

void driver_model::answer_plans(const expected<plan_accepted>& what) {
  for (auto [worker, waiting] : std::exchange(plans_, {}))
    give(answered_plans_, worker, answer<plan_accepted>{waiting.number, what});
}

void driver_model::answer_plans_of(generation_id generation, const expected<plan_accepted>& what) {
  const auto all = plans_;
  for (const auto& [worker, waiting] : all)
    if (waiting.generation == generation)
      answer_plan(worker, what);
}

void driver_model::answer_plan(worker_id worker, const expected<plan_accepted>& what) {
  if (auto waiting = plans_.extract(worker); !waiting.empty())
    give(answered_plans_, worker, answer<plan_accepted>{waiting.mapped().number, what});
}

} // namespace troupe::simulation
