#include "driver_model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

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

/// Another driver may have started so many workers since the journal was written last.
constexpr std::uint32_t spare_worker_ids = 64;

/// Other hosts do not matter here.
std::vector<std::string> addresses_of(std::size_t nodes) {
  return std::vector<std::string>(nodes);
}

} // namespace

// -- the store --------------------------------------------------------------------------------------------------------

void store_model::begin(generation_id generation) {
  truly_begun_ = std::max(truly_begun_, generation);
  if (generation <= generation_ || world_.defect() == mutation::hears_stale_parts)
    return;
  generation_ = generation;
  auto first_that_stays = pending_.lower_bound({generation_, step_id{}});
  for (auto i = pending_.begin(); i != first_that_stays; i = pending_.erase(i))
    for (auto [worker, number] : i->second.waiting) {
      world_.count(branch::checkpoint_taken_again);
      world_.send_to_thread(worker,
                            answer<checkpoint_outcome>{number, fail(errc::stale_generation, "a generation began")});
    }
}

void store_model::add(worker_id from, const request<state_part>& message) {
  const auto& part = message.message;
  auto key = std::pair{part.generation, part.state.step};
  if (written_.contains(key) ||
      ((part.is_last_copy || part.generation < generation_) && on_device_.contains(part.state.step)))
    return reply(from, message.number, part.state.step);
  if (part.is_last_copy) {
    world_.count(branch::saved_at_the_end);
    commit({{{part.rank, part}}, {}});
    return reply(from, message.number, part.state.step);
  }
  if (part.generation < generation_) {
    world_.count(branch::stale_part_refused);
    return world_.send_to_thread(
        from, answer<checkpoint_outcome>{message.number, fail(errc::stale_generation, "a generation began")});
  }
  auto& pending = pending_[key];
  pending.parts.insert_or_assign(part.rank, part);
  pending.waiting.emplace_back(from, message.number);
  if (pending.parts.size() < part.world_size)
    return;
  auto whole = std::move(pending_.extract(key).mapped());
  if (part.generation < truly_begun_)
    world_.violate("a checkpoint of generation " + std::to_string(part.generation.value) +
                   " was written in generation " + std::to_string(truly_begun_.value));
  commit(whole);
  written_.insert(key);
  for (auto [worker, number] : whole.waiting)
    reply(worker, number, part.state.step);
}

void store_model::reply(worker_id to, std::uint64_t number, step_id step) {
  world_.send_to_thread(to, answer<checkpoint_outcome>{number, checkpoint_outcome{step, "path", {}}});
}

void store_model::commit(const attempt& whole) {
  const auto& first = whole.parts.begin()->second.state;
  for (const auto& [rank, part] : whole.parts)
    if (part.state != first)
      world_.violate("the parts of a checkpoint differ");
  if (first != undisturbed_chain()[first.step.value])
    world_.violate("the checkpoint of step " + std::to_string(first.step.value) + " is not what it should be");
  if (world_.is_tracing())
    world_.note("checkpoint of step " + std::to_string(first.step.value) + " is written");
  on_device_.insert(first.step);
  if (!latest_ || latest_->step < first.step)
    latest_ = first;
}

// -- the collectives actor --------------------------------------------------------------------------------------------

void collectives_model::begin(const generation_started& message) {
  if (!table_.begin(message))
    return;
  for (const auto& [sequence, waiting] : std::exchange(waiting_, {}))
    for (auto [worker, number] : waiting)
      world_.send_to_thread(worker,
                            answer<exchange_result>{number, fail(errc::stale_generation, "a generation has begun")});
}

void collectives_model::exchange(worker_id from, request<exchange_request> message) {
  if (world_.defect() == mutation::hears_stale_members)
    message.message.generation = table_.generation();
  auto outcome = table_.add(message.message);
  if (!outcome) {
    world_.count(branch::stale_exchange_refused);
    return world_.send_to_thread(
        from, answer<exchange_result>{message.number, fail(outcome.error().code, outcome.error().message)});
  }
  waiting_[message.message.sequence].emplace_back(from, message.number);
  if (!*outcome)
    return;
  auto whole = waiting_.extract(message.message.sequence);
  for (auto [worker, number] : whole.mapped())
    world_.send_to_thread(worker, answer<exchange_result>{number, **outcome});
}

void collectives_model::end(const exchange_ended& message) {
  if (!table_.end(message))
    return;
  if (auto waiting = waiting_.extract(message.sequence); !waiting.empty())
    for (auto [worker, number] : waiting.mapped())
      world_.send_to_thread(worker, answer<exchange_result>{number, fail(errc::aborted, "given up")});
}

// -- the driver -------------------------------------------------------------------------------------------------------

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

template <class Reply>
void driver_model::give(std::map<worker_id, answer<Reply>>& memory, worker_id worker, answer<Reply> what) {
  memory.insert_or_assign(worker, what);
  world_.send_to_thread(worker, std::move(what));
}

template <class Request, class Reply>
bool driver_model::answers_again(const std::map<worker_id, answer<Reply>>& memory, const request<Request>& message) {
  const auto known = memory.find(message.message.worker);
  if (known == memory.end() || known->second.number != message.number || world_.defect() == mutation::forgets_answers)
    return false;
  world_.send_to_thread(message.message.worker, known->second);
  return true;
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
  staging_place place;
  place.number = group.number;
  place.generation = group.generation;
  place.sources = group.sources;
  place.joiners = group.joiners;
  for (auto [rank, worker] : group.to_answer) {
    world_.count(branch::joiners_staged);
    staged_.insert(worker);
    place.rank = rank;
    answer_report(worker, next_generation{place});
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

// -- what is decided --------------------------------------------------------------------------------------------------

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
