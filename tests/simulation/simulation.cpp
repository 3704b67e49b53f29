#include "simulation.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace troupe::simulation {

using namespace actors;

namespace {

/// No schedule takes so many turns.
constexpr std::uint64_t most_turns = 60'000;

/// Nobody has anything to do for so many ticks: nobody ever will.
constexpr std::uint32_t most_idle_ticks = 200;

std::string text(std::uint64_t x) {
  return std::to_string(x);
}

std::string name_of(const worker_model& x) {
  return "worker " + text(x.id().value);
}

} // namespace

simulation::process::process(surroundings& world, worker_id id, std::uint32_t node)
    : model(world, id, node),
      to_actor{end::actor, id.value},
      to_thread_from_driver{end::thread, id.value},
      to_thread_from_others{end::thread, id.value},
      to_driver{end::driver, id.value},
      to_store{end::store, id.value},
      to_collectives{end::collectives, id.value} {}

simulation::simulation(std::uint64_t seed, mutation defect, tally& counts, std::vector<std::string>* trace)
    : random_(seed), defect_(defect), counts_(counts), trace_(trace), passed_at_(most_steps + 1) {
  steps_ = random_.between(10, most_steps);
  checkpoint_every_ = random_.between(2, 5);
  peers_are_noticed_ = !random_.one_in(3);
  is_elastic_ = random_.one_in(3);
  first_size_ = random_.between(3, 6);
  const auto nodes = random_.between(2, 3);
  for (std::uint32_t i = 0; i < nodes; ++i)
    nodes_.push_back({route{end::node, i}, route{end::driver_from_node, i}});
  plan_incidents();
  // The store may be busy with something else when it is asked.
  driver_itself_.slowness = random_.one_in(3) ? 7 : 0;

  run_coordinator::settings settings;
  settings.run = run_;
  settings.build_id = "build";
  settings.failure.max_failures = 1'000'000;
  settings.failure.replace_lost = !random_.one_in(4);
  // Joiners get the state while the others train on, or wait.
  settings.failure.background_transfer_above_bytes = random_.one_in(2) ? 0 : 1;
  // Without replacements a run that has too few waits for ever, as it should.
  const auto least = settings.failure.replace_lost ? random_.between(1, 3) : 1;
  settings.workers = is_elastic_ ? worker_range{least, first_size_} : worker_range{first_size_};
  for (std::uint32_t i = 0; i < first_size_; ++i)
    settings.places.push_back({{i}, {i}, i * nodes / first_size_, 0, 1});
  driver_.emplace(*this, settings, nodes);
}

simulation::~simulation() = default;

/// At least two faults that cannot fail to come: after one of the steps before the last.
void simulation::plan_incidents() {
  auto any_fault = [&] {
    // Single workers die most often.
    static constexpr incident faults[] = {incident::kill_worker,   incident::kill_worker,   incident::kill_worker,
                                          incident::freeze_worker, incident::kill_worker,   incident::freeze_worker,
                                          incident::kill_node,     incident::freeze_node,   incident::cut_node_off,
                                          incident::kill_several,  incident::cut_connection};
    return random_.one_in(24) ? incident::kill_all : faults[random_.below(std::size(faults))];
  };
  const auto certain = random_.between(2, 3);
  for (std::uint32_t i = 0; i < certain; ++i)
    incidents_.push_back({any_fault(), random_.below(static_cast<std::uint32_t>(steps_) - 1), random_.below(80)});
  // Two at about the same time.
  if (random_.one_in(3)) {
    incidents_[1].step = incidents_[0].step;
    incidents_[1].turns = incidents_[0].turns + random_.below(40);
  }
  static constexpr standing places[] = {
      standing::reporting,     standing::reporting,    standing::exchanging, standing::connecting,
      standing::transferring,  standing::transferring, standing::saving,     standing::behind_barrier,
      standing::has_gradient,  standing::starting,     standing::agreeing,   standing::in_barrier,
      standing::between_steps, standing::finished,     standing::following,  standing::following};
  for (auto more = random_.below(4); more > 0; --more)
    incidents_.push_back(
        {any_fault(), random_.below(8), 0, places[random_.below(std::size(places))], random_.below(6)});
  static constexpr incident wishes[] = {incident::node_leaves, incident::checkpoint, incident::pause, incident::resize,
                                        incident::checkpoint,  incident::resize,     incident::pause};
  for (auto more = random_.below(3); more > 0; --more)
    incidents_.push_back({wishes[random_.below(std::size(wishes))],
                          random_.below(static_cast<std::uint32_t>(steps_) - 1), random_.below(80)});
  if (random_.one_in(16))
    incidents_.push_back({incident::stop, 4 + random_.below(6), random_.below(80)});
}

// -- the loop ---------------------------------------------------------------------------------------------------------

std::optional<std::string> simulation::play() {
  try {
    driver_->begin();
    while (!conclusion_ && !violation_)
      turn();
    if (!violation_ && faults_ < 2)
      violate("there were fewer than two faults");
  } catch (const std::exception& x) {
    violate(x.what());
  }
  return violation_;
}

void simulation::turn() {
  if (++turns_ > most_turns)
    return violate("the run does not end");
  ++now_;
  for (std::size_t i = 0; i < events_.size();) {
    if (events_[i].due > now_) {
      ++i;
      continue;
    }
    auto due = events_[i];
    events_[i] = events_.back();
    events_.pop_back();
    fire(due);
  }
  cause_what_is_due();
  if (take_random_turn()) {
    idle_ticks_ = 0;
    return;
  }
  // Nobody has anything to do before the next of these.
  auto next = std::ranges::min_element(events_, {}, &planned_event::due);
  if (next == events_.end())
    return;
  if (next->what == event::remind_tick && ++idle_ticks_ > most_idle_ticks)
    return violate("the run stands still; the driver waits for: " + driver_->coordinator().awaited_reports());
  now_ = std::max(now_, next->due - 1);
}

bool simulation::take_random_turn() {
  // The first places are the threads', the others the routes'.
  std::uint32_t threads[64];
  std::uint32_t n = 0;
  for (auto id : living_)
    if (n < 64 && processes_[id]->model.can_run())
      threads[n++] = id;
  route* routes[256];
  std::uint32_t m = 0;
  for (auto* each : active_)
    if (m < 256 && is_open(*each))
      routes[m++] = each;
  if (n + m == 0)
    return false;
  auto choice = random_.below(n + m);
  // Some are slow, in this schedule.
  for (int tries = 0; tries < 4; ++tries) {
    auto slowness = choice < n ? processes_[threads[choice]]->slowness : routes[choice - n]->slowness;
    if (slowness == 0 || random_.below(8) >= slowness)
      break;
    choice = random_.below(n + m);
  }
  if (choice < n)
    processes_[threads[choice]]->model.run();
  else
    deliver(*routes[choice - n]);
  return true;
}

// -- the network ------------------------------------------------------------------------------------------------------

void simulation::set_active(route& x, bool active) {
  if (x.is_active == active)
    return;
  x.is_active = active;
  if (active)
    active_.push_back(&x);
  else
    active_.erase(std::ranges::find(active_, &x));
}

void simulation::push(route& to, packet what) {
  if (to.packets.empty() && to.slowness == 0 && random_.one_in(16))
    to.slowness = random_.between(4, 7);
  to.packets.push_back(std::move(what));
  set_active(to, true);
}

void simulation::clear(route& x) {
  x.packets.clear();
  set_active(x, false);
}

bool simulation::is_open(const route& x) const {
  switch (x.to) {
  case end::driver_itself:
    return true;
  case end::node:
    return nodes_[x.who].lives && !nodes_[x.who].frozen && !nodes_[x.who].cut;
  case end::driver_from_node:
    // What the driver's own system tells of a node that is gone needs no connection.
    return !nodes_[x.who].lives || (!nodes_[x.who].frozen && !nodes_[x.who].cut);
  case end::actor:
  case end::thread:
    return !processes_[x.who]->model.is_frozen() && !processes_[x.who]->is_cut_off;
  case end::driver:
  case end::store:
  case end::collectives:
    return !processes_[x.who]->is_cut_off;
  }
  return true;
}

void simulation::deliver(route& from) {
  auto what = std::move(from.packets.front());
  // Asking twice is harmless, where the sender takes the first answer.
  if (std::holds_alternative<request<regroup_report>>(what) && random_.one_in(12)) {
    counts_.count(branch::report_repeated);
    from.packets.front() = what;
  } else {
    from.packets.pop_front();
    if (from.packets.empty())
      set_active(from, false);
  }
  handle(from, std::move(what));
}

void simulation::handle(const route& from, packet what) {
  if (from.to == end::node)
    return at_node(from.who, std::move(what));
  auto* there = from.to == end::actor || from.to == end::thread ? processes_[from.who].get() : nullptr;
  if (there != nullptr && !there->model.lives())
    return;
  std::visit(
      [&](auto& x) {
        using message = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<message, begin_work>)
          there->model.begin(x);
        else if constexpr (std::is_same_v<message, abort_training>) {
          if (trace_ != nullptr)
            note(there->model, "hears of the abort of generation " + text(x.generation.value));
          there->model.abort(x);
        } else if constexpr (std::is_same_v<message, control_command>)
          there->model.command(x);
        else if constexpr (std::is_same_v<message, release_worker>)
          there->model.release();
        else if constexpr (std::is_same_v<message, answer<plan_accepted>> ||
                           std::is_same_v<message, answer<next_generation>> ||
                           std::is_same_v<message, answer<exchange_result>> ||
                           std::is_same_v<message, answer<checkpoint_outcome>>)
          there->model.take(x);
        else if constexpr (std::is_same_v<message, request<state_part>>)
          driver_->store().add({from.who}, x);
        else if constexpr (std::is_same_v<message, request<exchange_request>>)
          driver_->collectives().exchange({from.who}, x);
        else if constexpr (std::is_same_v<message, node_speaks>)
          driver_->node_speaks(from.who);
        else if constexpr (std::is_same_v<message, node_goes>)
          driver_->node_goes(from.who);
        else if constexpr (std::is_same_v<message, node_opens>)
          driver_->node_opens(from.who);
        else if constexpr (std::is_same_v<message, connection_lost>)
          driver_->connection_lost(from.who);
        else if constexpr (std::is_same_v<message, facts_stored>)
          driver_->facts_are_stored(x.generation);
        else if constexpr (std::is_same_v<message, attempt_closed>)
          driver_->attempt_is_closed(x.attempt);
        else if constexpr (std::is_same_v<message, worker_ready> || std::is_same_v<message, request<run_plan>> ||
                           std::is_same_v<message, request<regroup_report>> || std::is_same_v<message, caught_up> ||
                           std::is_same_v<message, worker_finished> || std::is_same_v<message, worker_ended>)
          driver_->take(x);
        else
          throw std::logic_error{"a message went astray"};
      },
      what);
}

void simulation::at_node(std::uint32_t index, packet what) {
  auto& self = nodes_[index];
  if (const auto* start = std::get_if<start_process>(&what)) {
    const auto id = start->place.worker;
    if (processes_.size() <= id.value)
      processes_.resize(id.value + 1);
    processes_[id.value] = std::make_unique<process>(*this, id, index);
    living_.push_back(id.value);
    if (random_.one_in(6))
      processes_[id.value]->slowness = random_.between(3, 7);
    stands(processes_[id.value]->model, standing::starting);
  } else if (const auto* wanted = std::get_if<kill_process>(&what)) {
    if (auto* there = find(wanted->worker))
      kill(*there, 128 + 9);
  } else if (std::holds_alternative<kill_all>(what)) {
    for (auto id : std::vector{living_})
      if (processes_[id]->model.node() == index)
        kill(*processes_[id], 128 + 9);
    push(self.to_driver, node_opens{});
  } else {
    throw std::logic_error{"a message to a node went astray"};
  }
}

void simulation::send_to_driver(worker_model& from, packet what) {
  push(processes_[from.id().value]->to_driver, std::move(what));
}

void simulation::send_to_store(worker_model& from, packet what) {
  push(processes_[from.id().value]->to_store, std::move(what));
}

void simulation::send_to_collectives(worker_model& from, packet what) {
  push(processes_[from.id().value]->to_collectives, std::move(what));
}

void simulation::send_to_actor(worker_id worker, packet what) {
  if (auto* there = find(worker))
    push(there->to_actor, std::move(what));
}

void simulation::send_to_thread(worker_id worker, packet what) {
  auto* there = find(worker);
  if (there == nullptr)
    return;
  auto is_from_driver =
      std::holds_alternative<answer<next_generation>>(what) || std::holds_alternative<answer<plan_accepted>>(what);
  push(is_from_driver ? there->to_thread_from_driver : there->to_thread_from_others, std::move(what));
}

void simulation::send_to_node(std::uint32_t index, packet what) {
  if (nodes_[index].lives)
    push(nodes_[index].from_driver, std::move(what));
}

void simulation::send_to_driver_itself(packet what) {
  push(driver_itself_, std::move(what));
}

// -- the clock --------------------------------------------------------------------------------------------------------

run_coordinator::time simulation::clock() const {
  // A tick is 200 ms.
  return run_coordinator::time{} + std::chrono::milliseconds{10} * now_;
}

void simulation::plan(std::uint32_t delay, event what, std::uint32_t who, std::uint32_t epoch) {
  events_.push_back({now_ + delay, what, who, epoch});
}

void simulation::remind(reminder what) {
  switch (what) {
  case reminder::tick:
    return plan(tick_length, event::remind_tick);
  case reminder::drain:
    return plan(300, event::remind_drain);
  case reminder::hold:
    // Nobody is to run out of patience: nodes come back.
    return plan(3000, event::remind_hold);
  case reminder::grace:
    return plan(400, event::remind_grace);
  }
}

std::optional<step_id> simulation::beat_of(worker_id worker) {
  auto* who = find(worker);
  if (who == nullptr || who->model.is_frozen() || who->is_cut_off)
    return std::nullopt;
  return who->model.committed();
}

void simulation::fire(const planned_event& x) {
  switch (x.what) {
  case event::remind_tick:
    return driver_->reached(reminder::tick);
  case event::remind_drain:
    return driver_->reached(reminder::drain);
  case event::remind_hold:
    return driver_->reached(reminder::hold);
  case event::remind_grace:
    return driver_->reached(reminder::grace);
  case event::resume_run:
    return driver_->ask(&run_coordinator::on_resume);
  case event::kill_frozen_worker:
    if (auto* there = find({x.who}); there != nullptr && there->model.is_frozen()) {
      // A node that is frozen itself looks later.
      if (nodes_[there->model.node()].frozen)
        return plan(60, event::kill_frozen_worker, x.who);
      kill(*there, 128 + 9);
    }
    return;
  case event::revive_worker:
    if (auto* there = find({x.who}); there != nullptr && !nodes_[there->model.node()].frozen)
      there->model.freeze(false);
    return;
  case event::end_leaving_node:
    if (nodes_[x.who].leaves)
      kill_node(x.who);
    return;
  case event::fence_node:
    // Its epoch would tell that it speaks again.
    if (nodes_[x.who].epoch == x.epoch && !driver_->is_condemned(x.who) && !driver_->is_away(x.who))
      driver_->fence(x.who);
    return;
  case event::revive_node: {
    auto& self = nodes_[x.who];
    if (self.epoch != x.epoch)
      return;
    ++self.epoch;
    self.frozen = false;
    for (auto id : living_)
      if (processes_[id]->model.node() == x.who)
        processes_[id]->model.freeze(false);
    return push(self.to_driver, node_speaks{});
  }
  case event::mend_link: {
    auto& self = nodes_[x.who];
    if (self.epoch != x.epoch)
      return;
    ++self.epoch;
    self.cut = false;
    for (auto id : living_)
      if (processes_[id]->model.node() == x.who)
        processes_[id]->is_cut_off = false;
    return push(self.to_driver, node_speaks{});
  }
  case event::lose_connection:
    // Both ends give it up: the node ends what it has of the run.
    if (nodes_[x.who].epoch == x.epoch)
      kill_node(x.who);
    return;
  case event::bring_node_back: {
    auto& self = nodes_[x.who];
    if (self.epoch != x.epoch)
      return;
    ++self.epoch;
    self.lives = true;
    return push(self.to_driver, node_opens{});
  }
  }
}

// -- what happens -----------------------------------------------------------------------------------------------------

simulation::process* simulation::find(worker_id worker) {
  if (worker.value >= processes_.size() || processes_[worker.value] == nullptr ||
      !processes_[worker.value]->model.lives())
    return nullptr;
  return processes_[worker.value].get();
}

simulation::process* simulation::pick_process() {
  std::vector<process*> wanted;
  for (auto id : living_)
    if (!driver_->is_given_up({id}))
      wanted.push_back(processes_[id].get());
  return wanted.empty() ? nullptr : wanted[random_.below(static_cast<std::uint32_t>(wanted.size()))];
}

std::optional<std::uint32_t> simulation::pick_node() {
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].lives && !nodes_[i].frozen && !nodes_[i].cut)
      wanted.push_back(i);
  if (wanted.empty())
    return std::nullopt;
  return wanted[random_.below(static_cast<std::uint32_t>(wanted.size()))];
}

void simulation::count_loss(standing where) {
  if (where == standing::exchanging || where == standing::connecting)
    counts_.count(branch::lost_while_forming);
  else if (where == standing::reporting)
    counts_.count(branch::lost_while_reporting);
  else if (where == standing::transferring)
    counts_.count(branch::lost_while_transferring);
  else if (where == standing::following)
    counts_.count(branch::lost_while_following);
  else if (where == standing::saving)
    counts_.count(branch::lost_while_saving);
}

void simulation::kill(process& x, std::int32_t status) {
  if (!x.model.lives())
    return;
  if (trace_ != nullptr)
    note(x.model, "dies, where it " + std::string{to_string(x.model.stands())});
  count_loss(x.model.stands());
  // What it has sent last may not have left the process.
  for (auto* route : {&x.to_driver, &x.to_store, &x.to_collectives})
    if (!route->packets.empty() && random_.one_in(3)) {
      route->packets.pop_back();
      if (route->packets.empty())
        set_active(*route, false);
    }
  x.model.die();
  for (const auto& [generation, group] : groups_)
    for (std::uint32_t rank = 0; rank < group->size(); ++rank)
      if (group->members()[rank] == x.model.id() && group != x.model.group())
        group->close({rank}, peers_are_noticed_ ? &random_ : nullptr);
  if (status != 0)
    x.model.freeze(false);
  std::erase(living_, x.model.id().value);
  clear(x.to_actor);
  clear(x.to_thread_from_driver);
  clear(x.to_thread_from_others);
  // Its node waits for its end.
  if (nodes_[x.model.node()].lives)
    push(nodes_[x.model.node()].to_driver, worker_ended{run_, x.model.id(), status, "killed", {}});
}

void simulation::process_ends(worker_model& who) {
  auto& self = *processes_[who.id().value];
  std::erase(living_, who.id().value);
  clear(self.to_actor);
  clear(self.to_thread_from_driver);
  clear(self.to_thread_from_others);
  if (nodes_[who.node()].lives)
    push(nodes_[who.node()].to_driver, worker_ended{run_, who.id(), 0, "released", {}});
}

void simulation::freeze(process& x) {
  if (trace_ != nullptr)
    note(x.model, "freezes, where it " + std::string{to_string(x.model.stands())});
  x.model.freeze(true);
  plan(random_.between(60, 200), event::kill_frozen_worker, x.model.id().value);
  plan(random_.between(10, 260), event::revive_worker, x.model.id().value);
}

void simulation::kill_node(std::uint32_t index) {
  auto& self = nodes_[index];
  if (trace_ != nullptr)
    note("node " + text(index) + " goes");
  ++self.epoch;
  // What was on its way may still come, or not.
  if (random_.one_in(2))
    clear(self.to_driver);
  clear(self.from_driver);
  self.lives = false;
  self.frozen = self.cut = self.leaves = false;
  for (auto id : std::vector{living_})
    if (processes_[id]->model.node() == index) {
      auto& each = *processes_[id];
      if (each.is_cut_off || random_.one_in(2)) {
        clear(each.to_driver);
        clear(each.to_store);
        clear(each.to_collectives);
      }
      each.is_cut_off = false;
      kill(each, 128 + 9);
    }
  push(self.to_driver, connection_lost{});
  plan(random_.between(40, 400), event::bring_node_back, index, self.epoch);
}

void simulation::freeze_node(std::uint32_t index) {
  auto& self = nodes_[index];
  if (trace_ != nullptr)
    note("node " + text(index) + " freezes");
  ++self.epoch;
  self.frozen = true;
  if (!random_.one_in(3))
    for (auto id : living_)
      if (processes_[id]->model.node() == index)
        processes_[id]->model.freeze(true);
  plan(random_.between(100, 140), event::fence_node, index, self.epoch);
  plan(random_.between(60, 500), event::revive_node, index, self.epoch);
}

void simulation::cut_off(std::uint32_t index) {
  auto& self = nodes_[index];
  if (trace_ != nullptr)
    note("node " + text(index) + " is cut off");
  ++self.epoch;
  self.cut = true;
  const auto data_too = random_.one_in(2);
  peers_are_noticed_ = peers_are_noticed_ || data_too;
  for (auto id : living_) {
    auto& each = *processes_[id];
    if (each.model.node() != index)
      continue;
    each.is_cut_off = true;
    if (data_too && each.model.group())
      for (std::uint32_t rank = 0; rank < each.model.group()->size(); ++rank)
        if (auto* other = find(each.model.group()->members()[rank]); other != nullptr && other->model.node() != index)
          each.model.group()->cut(each.model.rank(), {rank}, &random_);
  }
  plan(random_.between(100, 140), event::fence_node, index, self.epoch);
  plan(random_.between(60, 500), random_.one_in(3) ? event::lose_connection : event::mend_link, index, self.epoch);
}

void simulation::cause_what_is_due() {
  for (std::size_t i = 0; i < incidents_.size();) {
    const auto x = incidents_[i];
    // What is to come after a step comes before the run is over.
    auto is_due = !x.where && furthest_ >= x.step &&
                  (now_ >= passed_at_[x.step] + x.turns || furthest_ + 1 >= steps_) &&
                  (x.what != incident::stop || faults_ >= 2) && (x.what > incident::cut_connection || pick_process());
    if (!is_due) {
      ++i;
      continue;
    }
    incidents_.erase(incidents_.begin() + static_cast<std::ptrdiff_t>(i));
    cause(x);
  }
}

void simulation::cause(const planned_incident& x) {
  // Who stood where this was to happen, or another.
  auto* who = x.who && random_.one_in(2) ? find(*x.who) : nullptr;
  if (who == nullptr)
    who = pick_process();
  auto node = pick_node();
  auto what = x.what;
  // There is always something to break.
  if ((what == incident::kill_node || what == incident::freeze_node || what == incident::cut_node_off) && !node)
    what = incident::kill_worker;
  if (what == incident::cut_connection && (who == nullptr || !who->model.group() || who->model.group()->size() < 2))
    what = incident::kill_worker;
  if (what <= incident::cut_connection) {
    ++faults_;
    counts_.count(branch::fault);
  }
  switch (what) {
  case incident::kill_worker:
    if (who != nullptr)
      kill(*who, 128 + 9);
    return;
  case incident::freeze_worker:
    if (who != nullptr)
      freeze(*who);
    return;
  case incident::kill_node:
    return kill_node(node.value_or(0));
  case incident::freeze_node:
    return freeze_node(node.value_or(0));
  case incident::cut_node_off:
    return cut_off(node.value_or(0));
  case incident::kill_several:
    for (auto i = random_.between(2, 4); i > 0; --i)
      if (auto* next = pick_process())
        kill(*next, 128 + 9);
    return;
  case incident::kill_all:
    if (trace_ != nullptr)
      note("all workers die");
    for (auto id : std::vector{living_})
      kill(*processes_[id], 128 + 9);
    return;
  case incident::cut_connection:
    if (who != nullptr) {
      auto other = random_.below(who->model.group()->size() - 1);
      other += other >= who->model.rank().value ? 1 : 0;
      if (trace_ != nullptr)
        note(who->model, "loses its connection to rank " + text(other));
      // Nobody else tells them.
      peers_are_noticed_ = true;
      who->model.group()->cut(who->model.rank(), {other}, &random_);
    }
    return;
  case incident::node_leaves:
    if (node) {
      nodes_[*node].leaves = true;
      push(nodes_[*node].to_driver, node_goes{});
      plan(random_.between(300, 700), event::end_leaving_node, *node);
    }
    return;
  case incident::checkpoint:
    return driver_->ask(&run_coordinator::on_checkpoint_request);
  case incident::pause:
    driver_->ask(&run_coordinator::on_pause);
    return plan(random_.between(20, 300), event::resume_run);
  case incident::resize:
    return driver_->resize(random_.between(1, 6));
  case incident::stop:
    stop_asked_ = true;
    return driver_->stop();
  case incident::none:
    return;
  }
}

// -- the checker ------------------------------------------------------------------------------------------------------

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
    passed_at_[furthest_] = std::max(passed_at_[furthest_], now_);
    return;
  }
}

void simulation::has_applied(worker_model& who, const number_chain& before, const number_chain& after) {
  if (after != undisturbed_chain()[after.step.value])
    violate(name_of(who) + " has another state after step " + text(after.step.value) + " than the undisturbed run, " +
            (before == undisturbed_chain()[before.step.value] ? "and had the same before" : "and before, too"));
  if (after.step.value > furthest_) {
    furthest_ = after.step.value;
    passed_at_[furthest_] = now_;
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
  if (next.decision.commit_point < settled_)
    violate("step " + text(next.decision.commit_point.value) + " is commit_point, and step " + text(settled_.value) +
            " was before");
  settled_ = next.decision.commit_point;
  auto is_behind = false;
  for (const auto& place : next.places) {
    auto* who = find(place.worker);
    if (driver_->is_given_up(place.worker))
      violate("worker " + text(place.worker.value) + " has been given up, and gets a place");
    if (who != nullptr && who->model.is_caught_up() &&
        std::ranges::find(next.joiners, place.worker) == next.joiners.end()) {
      counts_.count(branch::follower_let_in);
      if (who->model.committed() != settled_)
        violate(name_of(who->model) + " has followed the others to step " + text(who->model.committed().value) +
                ", and they are at step " + text(settled_.value));
    }
    if (who == nullptr || !who->model.has_state())
      continue;
    is_behind = is_behind || who->model.committed() < settled_;
    if (who->model.committed() > settled_)
      violate(name_of(who->model) + " has committed step " + text(who->model.committed().value) + ", and step " +
              text(settled_.value + 1) + " is to be computed again");
    if (who->model.committed() < settled_ && who->model.reduced() < settled_)
      violate(name_of(who->model) + " is to apply step " + text(settled_.value) + " without its gradient");
    if (!next.joiners.empty() && who->model.state().step != settled_)
      violate(name_of(who->model) + " is to give a joiner the state of step " + text(settled_.value) +
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
  settled_ = {};
  for (auto id : living_) {
    const auto& who = processes_[id]->model;
    if (!who.has_state() || who.attempt() + 1 != driver_->coordinator().attempt() || driver_->is_told_lost(who.id()))
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

void simulation::concludes(const conclude& x, const std::string& why) {
  conclusion_ = x;
  const auto& run = driver_->coordinator();
  // A run whose workers die again and again before they have done a step is given up, as it should be.
  if (x.status == run_status::failed && why.find("in which no step was done") != std::string::npos && faults_ >= 5)
    return;
  if (x.status == run_status::failed)
    return violate("the run fails: " + x.reason.message);
  if (x.status == run_status::stopped && !stop_asked_)
    return violate("the run stops, and nobody has asked for it");
  if (x.status == run_status::stopped && run.state_sha256().empty())
    return counts_.count(branch::stopped);
  if (x.status == run_status::stopped)
    counts_.count(branch::stopped);
  check_failures();
  const auto& expected = undisturbed_chain()[run.final_step().value];
  if (x.status == run_status::completed && run.final_step().value != steps_)
    violate("the run is complete after step " + text(run.final_step().value) + " of " + text(steps_));
  if (run.state_sha256() != text(expected.value))
    violate("the run ends with another state than the undisturbed one");
}

/// What is told of failures is what has happened, once.
void simulation::check_failures() {
  std::vector<worker_id> told;
  for (const auto& each : driver_->coordinator().failures()) {
    if (each.reason.code != errc::worker_lost && each.reason.code != errc::node_lost)
      violate("a failure is told that was none: " + each.reason.message);
    if (std::ranges::find(told, each.worker) != told.end())
      violate("worker " + text(each.worker.value) + " is told to have failed twice");
    told.push_back(each.worker);
    auto* who = find(each.worker);
    if (who != nullptr && each.reason.code == errc::worker_lost)
      violate(name_of(who->model) + " lives, and is told to have failed: " + each.reason.message);
  }
}

std::optional<regroup_report> simulation::guess_report_of(worker_id worker) {
  auto* who = find(worker);
  if (who == nullptr || !who->model.has_state())
    return std::nullopt;
  regroup_report result;
  result.run = run_;
  result.worker = worker;
  result.generation = who->model.generation();
  result.position = worker_position::in_step{{who->model.committed(), 0, 0},
                                             who->model.reduced().value == who->model.committed().value + 1};
  return result;
}

} // namespace troupe::simulation
