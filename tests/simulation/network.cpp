#include "simulation.hpp"
#include "simulation_limits.hpp"

#include <algorithm>
#include <optional>
#include <utility>

// How messages travel between the processes of a simulation.

namespace troupe::simulation {

using namespace actors;

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
  const auto is_to_driver = x.to != end::node && x.to != end::actor && x.to != end::thread;
  if (is_to_driver && !driver_lives_)
    return false;
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
  // Asking twice is harmless, where the sender takes the first answer; and so is telling twice.
  const auto asks = std::holds_alternative<request<regroup_report>>(what);
  const auto tells = std::holds_alternative<worker_ready>(what) || std::holds_alternative<worker_finished>(what) ||
                     std::holds_alternative<worker_ended>(what) || std::holds_alternative<caught_up>(what);
  if ((asks || tells) && random_.one_in(12)) {
    if (asks)
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
  if (auto number = number_of<answer>(what))
    std::erase_if(there->unanswered, [&](const auto& x) { return number_of<request>(x.second) == number; });
  std::visit(
      [&](auto& x) {
        using message = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<message, begin_work>)
          there->model.begin(x);
        else if constexpr (std::is_same_v<message, abort_training>) {
          if (trace_ != nullptr)
            note(there->model, "hears of the abort of generation " + text(x.generation.value));
          there->model.abort(x);
        } else if constexpr (std::is_same_v<message, control_command>) {
          if (std::holds_alternative<stop_command>(x.what))
            stop_heard_after_[from.who] = furthest_;
          there->model.command(x);
        } else if constexpr (std::is_same_v<message, release_worker>)
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
        else if constexpr (std::is_same_v<message, node_claimed>)
          driver_->node_claimed(from.who, x.living);
        else if constexpr (std::is_same_v<message, journal_written>)
          driver_->journal_is_written();
        else if constexpr (std::is_same_v<message, metadata_stored>)
          driver_->metadata_is_stored(x.generation);
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
    self.driver = drivers_;
    if (processes_.size() <= id.value)
      processes_.resize(id.value + 1);
    processes_[id.value] = std::make_unique<process>(*this, id, index, flaw_for(id));
    living_.push_back(id.value);
    if (random_.one_in(6))
      processes_[id.value]->slowness = random_.between(3, 7);
    stands(processes_[id.value]->model, standing::starting);
  } else if (const auto* wanted = std::get_if<kill_process>(&what)) {
    if (auto* there = find(wanted->worker))
      kill(*there, 128 + 9);
  } else if (std::holds_alternative<kill_all>(what)) {
    self.driver = drivers_;
    for (auto id : std::vector{living_})
      if (processes_[id]->model.node() == index)
        kill(*processes_[id], 128 + 9);
    push(self.to_driver, node_opens{});
  } else {
    throw std::logic_error{"a message to a node went astray"};
  }
}

void simulation::send(worker_model& from, route process::*where, packet what) {
  auto& self = *processes_[from.id().value];
  if (std::holds_alternative<worker_ready>(what))
    self.introduction = what;
  if (std::holds_alternative<worker_finished>(what))
    self.end = what;
  if (number_of<request>(what))
    self.unanswered.emplace_back(&(self.*where), what);
  push(self.*where, std::move(what));
}

void simulation::send_to_driver(worker_model& from, packet what) {
  send(from, &process::to_driver, std::move(what));
}

void simulation::send_to_store(worker_model& from, packet what) {
  send(from, &process::to_store, std::move(what));
}

void simulation::send_to_collectives(worker_model& from, packet what) {
  send(from, &process::to_collectives, std::move(what));
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

} // namespace troupe::simulation
