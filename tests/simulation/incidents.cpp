#include "simulation.hpp"
#include "simulation_limits.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

// What goes wrong in a simulation: processes, hosts and networks that fail, and users who change their minds.

namespace troupe::simulation {

using namespace actors;

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
    push(nodes_[x.model.node()].to_driver,
         worker_ended{run_, x.model.id(), status, status == 1 ? "exit code 1" : "killed", {}});
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
  x.silent_from = clock() + random_.between(60, 200) * turn_length;
  // Nobody watches those that have yet to join. Some others do not run again, where that ends in time.
  const auto is_watched = x.model.stands() != standing::starting;
  if (is_watched && unreachable_after_ <= longest_wait && random_.one_in(4))
    return;
  const auto is_long = is_watched && random_.one_in(4);
  plan(is_long ? random_.between(300, 3'000) : random_.between(10, 260), event::revive_worker, x.model.id().value);
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
  const auto was_leaving = std::exchange(self.leaves, false);
  self.frozen = self.cut = false;
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
  if (was_leaving)
    push(self.to_driver, connection_lost{});
  plan(random_.between(1, 10), event::notice_end_of_node, index, self.epoch);
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
  plan(random_.between(100, 140), event::report_silence, index, self.epoch);
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
  plan(random_.between(100, 140), event::report_silence, index, self.epoch);
  plan(random_.between(60, 500), random_.one_in(3) ? event::reset_link : event::mend_link, index, self.epoch);
}

/// The data network is cut between nodes; the driver reaches all.
void simulation::cut_network() {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i)
    if (random_.one_in(2))
      far_side_.insert(i);
  if (far_side_.empty() || far_side_.size() == nodes_.size())
    far_side_ = {random_.below(static_cast<std::uint32_t>(nodes_.size()))};
  if (trace_ != nullptr) {
    std::string names;
    for (auto index : far_side_)
      names += " " + text(index);
    note("the data network is cut: nodes" + names + " on one side");
  }
  // Nobody else tells them.
  peers_are_noticed_ = true;
  std::set<data_plane*> groups;
  for (auto id : living_)
    if (const auto& group = processes_[id]->model.group())
      groups.insert(group.get());
  for (auto* group : groups)
    cut_between_sides(*group);
  plan(random_.between(30, 600), event::mend_network);
}

void simulation::cut_between_sides(data_plane& group) {
  const auto node_of = [&](std::uint32_t rank) { return processes_[group.members()[rank].value]->model.node(); };
  for (std::uint32_t a = 0; a < group.size(); ++a)
    for (std::uint32_t b = a + 1; b < group.size(); ++b)
      if (is_far(node_of(a)) != is_far(node_of(b)))
        group.cut({a}, {b}, &random_);
}

std::vector<rank_id> simulation::unreachable_from(const worker_model& who) {
  // One that had nothing to ask does not know.
  if (far_side_.empty() || random_.one_in(5))
    return {};
  std::vector<rank_id> result;
  const auto& members = who.group()->members();
  for (std::uint32_t rank = 0; rank < members.size(); ++rank)
    if (is_far(processes_[members[rank].value]->model.node()) != is_far(who.node()))
      result.push_back({rank});
  return result;
}

/// The connection between the driver and a node that was cut off is gone, and there is another.
void simulation::reset(std::uint32_t index) {
  auto& self = nodes_[index];
  if (trace_ != nullptr)
    note("node " + text(index) + " is connected again");
  counts_.count(branch::connected_again);
  ++self.epoch;
  self.cut = false;
  speak(index);
  repeat_requests(index);
}

void simulation::repeat_requests(std::uint32_t index) {
  for (auto id : living_) {
    auto& each = *processes_[id];
    if (each.model.node() != index)
      continue;
    each.is_cut_off = false;
    clear(each.to_thread_from_driver);
    clear(each.to_thread_from_others);
    for (auto& [where, what] : each.unanswered) {
      const auto is_same = [number = number_of<request>(what)](const packet& x) {
        return number_of<request>(x) == number;
      };
      if (std::ranges::none_of(where->packets, is_same))
        push(*where, what);
    }
  }
}

void simulation::speak(std::uint32_t index) {
  auto& self = nodes_[index];
  if (std::exchange(self.driver, drivers_) == drivers_)
    return push(self.to_driver, node_speaks{});
  push(self.to_driver, node_claimed{living_on(index)});
  introduce(index);
}

std::vector<worker_beat> simulation::living_on(std::uint32_t index) const {
  std::vector<worker_beat> result;
  for (auto id : living_)
    if (const auto& model = processes_[id]->model; model.node() == index) {
      auto& beat = result.emplace_back();
      beat.run = run_;
      beat.worker = model.id();
      if (defect_ != mutation::adopts_into_the_old_generation)
        beat.generation = model.generation();
      beat.committed = model.committed();
    }
  return result;
}

/// The processes of a node hear of another driver.
void simulation::introduce(std::uint32_t index) {
  for (auto id : living_) {
    auto& each = *processes_[id];
    if (each.model.node() != index)
      continue;
    // What was on its way from the one before is lost, and what was on its way to it comes after this.
    clear(each.to_actor);
    clear(each.to_driver);
    clear(each.to_store);
    clear(each.to_collectives);
    for (const auto& said : {each.introduction, each.end})
      if (said)
        push(each.to_driver, *said);
  }
  repeat_requests(index);
  if (nodes_[index].leaves)
    push(nodes_[index].to_driver, node_goes{});
}

void simulation::kill_driver() {
  if (trace_ != nullptr)
    note("the driver dies");
  counts_.count(branch::driver_killed);
  driver_lives_ = false;
  driver_->end_while_writing(random_.one_in(2));
  clear(driver_itself_);
  std::erase_if(events_, [](const planned_event& x) {
    return x.what == event::remind_tick || x.what == event::remind_start || x.what == event::remind_drain ||
           x.what == event::remind_hold || x.what == event::remind_grace;
  });
  // What it has sent may have left its process, or not.
  for (auto* each : std::vector{active_})
    if (each->to == end::node || each->to == end::actor || each->to == end::thread)
      while (!each->packets.empty() && random_.one_in(2)) {
        each->packets.pop_back();
        if (each->packets.empty())
          set_active(*each, false);
      }
  plan(random_.between(1, 400), event::start_driver);
}

void simulation::start_driver() {
  std::map<std::uint32_t, std::vector<worker_beat>> living;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].lives && !nodes_[i].frozen && !nodes_[i].cut)
      living[i] = living_on(i);
  if (trace_ != nullptr)
    note("another driver takes the run over, with " + text(living.size()) + " nodes");
  if (living.size() < nodes_.size())
    counts_.count(branch::taken_over_in_part);
  ++drivers_;
  driver_lives_ = true;
  const auto before = std::move(*driver_);
  driver_.emplace(before, settings_, living);
  for (auto& each : nodes_)
    clear(each.from_driver);
  // What was on its way to the dead driver is lost, also from where nobody has heard of this one yet.
  for (auto id : living_)
    if (auto& each = *processes_[id]; !living.contains(each.model.node())) {
      clear(each.to_driver);
      clear(each.to_store);
      clear(each.to_collectives);
    }
  for (const auto& [index, beats] : living) {
    nodes_[index].driver = drivers_;
    introduce(index);
  }
  driver_->go_on(living);
  // Whoever has asked the one before for something asks again.
  plan(random_.between(20, 300), event::resume_run);
  if (stop_asked_)
    driver_->stop({false});
}

void simulation::cause_what_is_due() {
  for (std::size_t i = 0; i < incidents_.size();) {
    const auto x = incidents_[i];
    // What is to come after a step comes before the run is over.
    auto is_due = !x.where && furthest_ >= x.step &&
                  (now_ >= committed_at_[x.step] + x.turns || furthest_ + 1 >= steps_) &&
                  (x.what > incident::kill_driver || pick_process()) &&
                  // Nobody hears a wish.
                  (driver_lives_ || x.what < incident::kill_driver);
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
  if (what == incident::cut_network && (nodes_.size() < 2 || !far_side_.empty()))
    what = incident::kill_worker;
  if (what == incident::cut_connection && (who == nullptr || !who->model.group() || who->model.group()->size() < 2))
    what = incident::kill_worker;
  // While processes start there is nothing to take over: the run begins anew.
  if (what == incident::kill_driver && (!driver_->leaves_members() || driver_->is_in_grace() || conclusion_))
    what = incident::kill_worker;
  if (what <= incident::kill_driver) {
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
  case incident::cut_network:
    return cut_network();
  case incident::silence_all_nodes:
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].lives && !nodes_[i].frozen && !nodes_[i].cut)
        random_.one_in(2) ? freeze_node(i) : cut_off(i);
    return;
  case incident::kill_driver:
    return kill_driver();
  case incident::exit_worker:
    if (who != nullptr) {
      has_exited_ = true;
      kill(*who, 1);
    }
    return;
  case incident::hang_worker:
    // Nobody notices one that hangs before it has joined, but for the time that it takes.
    if (auto* starts = x.who ? find(*x.who) : nullptr;
        starts != nullptr && starts->model.stands() == standing::starting) {
      has_hung_ = true;
      starts->model.freeze(true);
    }
    return;
  case incident::group_hang:
    ++group_hangs_;
    return driver_->group_hangs();
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
  case incident::stop_at_once:
    if (driver_->coordinator().starting())
      counts_.count(branch::stopped_before_the_start);
    else if (what == incident::stop_at_once)
      counts_.count(branch::stopped_at_once);
    stop_asked_ = true;
    stop_asked_after_ = furthest_;
    return driver_->stop({what == incident::stop_at_once});
  case incident::none:
    return;
  }
}

} // namespace troupe::simulation
