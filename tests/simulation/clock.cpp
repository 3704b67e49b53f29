#include "simulation.hpp"
#include "simulation_limits.hpp"

#include <chrono>

// The time of a simulation, and what is planned for later.

namespace troupe::simulation {

using namespace actors;

run_coordinator::time simulation::clock() const {
  // A tick is 200 ms.
  return run_coordinator::time{} + turn_length * now_;
}

void simulation::plan(std::uint32_t delay, event what, std::uint32_t who, std::uint32_t epoch) {
  events_.push_back({now_ + delay, what, who, epoch});
}

void simulation::remind(reminder what) {
  switch (what) {
  case reminder::tick:
    return plan(tick_length, event::remind_tick);
  case reminder::start:
    if (defect_ != mutation::sets_no_start_deadline)
      plan(static_cast<std::uint32_t>(start_limit / turn_length), event::remind_start,
           driver_ ? driver_->coordinator().attempt() : 1);
    return;
  case reminder::drain:
    return plan(300, event::remind_drain);
  case reminder::hold:
    // Nobody is to run out of patience where nodes come back.
    was_held_ = true;
    if (defect_ != mutation::sets_no_hold_deadline)
      plan(3000, event::remind_hold);
    return;
  case reminder::grace:
    if (defect_ != mutation::sets_no_grace_period)
      plan(400, event::remind_grace);
    return;
  }
}

std::optional<worker_beat> simulation::beat_of(worker_id worker) {
  auto* who = find(worker);
  if (who == nullptr || who->model.is_frozen() || who->is_cut_off)
    return std::nullopt;
  worker_beat beat;
  beat.committed = who->model.committed();
  beat.progress = who->model.progress();
  return beat;
}

void simulation::fire(const planned_event& x) {
  switch (x.what) {
  case event::remind_tick:
    return driver_->reached(reminder::tick);
  case event::remind_start:
    // Another attempt has its own.
    if (driver_->coordinator().attempt() == x.who)
      driver_->reached(reminder::start);
    return;
  case event::remind_drain:
    return driver_->reached(reminder::drain);
  case event::remind_hold:
    return driver_->reached(reminder::hold);
  case event::remind_grace:
    return driver_->reached(reminder::grace);
  case event::start_driver:
    return start_driver();
  case event::resume_run:
    if (!driver_lives_)
      return plan(50, event::resume_run);
    return driver_->ask(&run_coordinator::on_resume);
  case event::revive_worker:
    if (auto* there = find({x.who}); there != nullptr && !nodes_[there->model.node()].frozen)
      there->model.freeze(false);
    return;
  case event::end_leaving_node:
    if (nodes_[x.who].leaves)
      kill_node(x.who);
    return;
  case event::report_silence:
    // Its epoch would tell that it speaks again.
    if (!driver_lives_)
      return plan(50, x.what, x.who, x.epoch);
    if (nodes_[x.who].epoch == x.epoch && !driver_->is_fenced(x.who) && !driver_->is_silent(x.who) &&
        !driver_->is_away(x.who))
      driver_->node_is_silent(x.who);
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
    return speak(x.who);
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
    return speak(x.who);
  }
  case event::mend_network:
    if (trace_ != nullptr)
      note("the data network carries again");
    return far_side_.clear();
  case event::reset_link:
    if (nodes_[x.who].epoch == x.epoch)
      reset(x.who);
    return;
  case event::notice_end_of_node:
    if (!driver_lives_)
      return plan(50, x.what, x.who, x.epoch);
    if (nodes_[x.who].epoch == x.epoch && !driver_->is_fenced(x.who) && !driver_->is_silent(x.who) &&
        !driver_->is_away(x.who))
      driver_->node_is_silent(x.who);
    return;
  case event::bring_node_back: {
    auto& self = nodes_[x.who];
    if (self.epoch != x.epoch)
      return;
    ++self.epoch;
    self.lives = true;
    // It knows nothing of the run.
    push(self.to_driver, connection_lost{});
    return push(self.to_driver, node_opens{});
  }
  }
}

} // namespace troupe::simulation
