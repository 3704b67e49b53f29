#include "simulation.hpp"
#include "simulation_limits.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace troupe::simulation {

using namespace actors;

simulation::process::process(worker_environment& world, worker_id id, std::uint32_t node, flaw has)
    : model(world, id, node, has),
      to_actor{end::actor, id.value},
      to_thread_from_driver{end::thread, id.value},
      to_thread_from_others{end::thread, id.value},
      to_driver{end::driver, id.value},
      to_store{end::store, id.value},
      to_collectives{end::collectives, id.value} {}

simulation::simulation(std::uint64_t seed, mutation defect, tally& counts, std::vector<std::string>* trace)
    : random_(seed), defect_(defect), counts_(counts), trace_(trace), committed_at_(most_steps + 1) {
  steps_ = random_.between(10, most_steps);
  checkpoint_every_ = random_.between(2, 5);
  peers_are_noticed_ = !random_.one_in(3);
  is_elastic_ = random_.one_in(3);
  first_size_ = random_.between(3, 6);
  const auto nodes = random_.between(2, 3);
  for (std::uint32_t i = 0; i < nodes; ++i)
    nodes_.push_back({route{end::node, i}, route{end::driver_from_node, i}});
  write_program();
  plan_incidents();
  // The store may be busy with something else when it is asked.
  driver_itself_.slowness = random_.one_in(3) ? 7 : 0;

  run_coordinator::settings settings;
  settings.run = run_;
  settings.build_id = "build";
  settings.compare_numerics = [](const std::string& ours, const std::string& theirs) {
    return ours == theirs ? std::vector<std::string>{} : std::vector{ours + " / " + theirs};
  };
  most_failures_ = random_.one_in(10) ? random_.below(4) : plenty;
  settings.failure.max_failures = defect_ == mutation::forgets_failures ? plenty : most_failures_;
  settings.failure.replace_after = joiner_limit;
  settings.start_timeout = joiner_limit;
  settings.failure.replace_lost = !random_.one_in(4);
  if (random_.one_in(4))
    unreachable_after_ = std::chrono::milliseconds{random_.between(500, longest_wait.count())};
  settings.failure.unreachable_after = unreachable_after_;
  // Joiners get the state while the others train on, or wait.
  settings.failure.background_transfer_above_bytes = random_.one_in(2) ? 0 : 1;
  // Without replacements a run that has too few ends by that.
  const auto least = settings.failure.replace_lost || random_.one_in(8) ? random_.between(1, 3) : 1;
  settings.workers = is_elastic_ ? worker_range{least, first_size_} : worker_range{first_size_};
  for (std::uint32_t i = 0; i < first_size_; ++i)
    settings.places.push_back({{i}, {i}, i * nodes / first_size_, 0, 1});
  keeps_journal_ = random_.one_in(2);
  settings_ = settings;
  driver_.emplace(*this, settings, nodes);
}

simulation::~simulation() = default;

/// Loops, evaluations, and what is to go wrong in them.
void simulation::write_program() {
  const auto loops = random_.one_in(2) ? 1 : random_.between(2, 3);
  for (std::uint32_t i = 1; i <= loops; ++i)
    program_.loops.push_back({steps_ * i / loops, random_.one_in(2) ? 0 : random_.between(1, 2)});
  program_.evaluates_every = random_.one_in(2) ? 0 : random_.between(1, 4);
  if (random_.one_in(8))
    flaw_ = static_cast<flaw>(random_.between(1, 4));
  if (random_.one_in(8))
    program_.throws = program::exception{
        {random_.between(1, static_cast<std::uint32_t>(steps_))},
        random_.one_in(2) ? program::exception::place::before_reduction : program::exception::place::behind_barrier,
        random_.one_in(3) ? program::exception::recurrence::always : program::exception::recurrence::once};
}

flaw simulation::flaw_for(worker_id worker) {
  // Most that are there at the start are as they should be: the others end the run at once.
  return flaw_ != flaw::none && random_.one_in(worker.value < first_size_ ? 24 : 3) ? flaw_ : flaw::none;
}

bool simulation::throws(const worker_model& who, step_id step, program::exception::place where) {
  const auto& x = program_.throws;
  if (!x || x->step != step || x->where != where || (x->how == program::exception::recurrence::once && has_thrown_))
    return false;
  members_threw_ += who.has_state() ? 1 : 0;
  throws_again_ = std::exchange(has_thrown_, true) || step.value <= who.restored().value + 1;
  if (trace_ != nullptr)
    note(who, "throws in step " + text(step.value));
  return true;
}

/// At least two faults that cannot fail to come: after one of the steps before the last.
void simulation::plan_incidents() {
  auto any_fault = [&] {
    // Single workers die most often.
    static constexpr incident faults[] = {incident::kill_worker,   incident::kill_worker,    incident::kill_worker,
                                          incident::freeze_worker, incident::kill_worker,    incident::freeze_worker,
                                          incident::kill_node,     incident::freeze_node,    incident::cut_node_off,
                                          incident::kill_several,  incident::cut_connection, incident::cut_network};
    if (random_.one_in(24))
      return random_.one_in(2) ? incident::kill_all : incident::silence_all_nodes;
    if (random_.one_in(6))
      return incident::kill_driver;
    return faults[random_.below(std::size(faults))];
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
  plan_trouble();
}

/// What a run may end by.
void simulation::plan_trouble() {
  if (random_.one_in(32))
    incidents_.push_back({random_.one_in(2) ? incident::stop : incident::stop_at_once,
                          random_.below(static_cast<std::uint32_t>(steps_)), random_.below(200)});
  if (random_.one_in(16))
    for (auto more = random_.between(1, 3); more > 0; --more)
      incidents_.push_back({incident::exit_worker, random_.below(8), 0,
                            random_.one_in(2) ? standing::starting : standing::reporting, random_.below(6)});
  if (random_.one_in(24))
    for (auto more = random_.between(1, 2); more > 0; --more)
      incidents_.push_back({incident::hang_worker, 0, 0, standing::starting, random_.below(10)});
  if (random_.one_in(24))
    for (auto more = random_.between(1, 2); more > 0; --more)
      incidents_.push_back(
          {incident::group_hang, random_.below(static_cast<std::uint32_t>(steps_) - 1), random_.below(80)});
}

std::optional<std::string> simulation::simulate() {
  try {
    driver_->begin();
    while (!conclusion_ && !violation_)
      turn();
    if (!violation_ && faults_ < 2 && conclusion_->status == run_status::completed)
      violate("there were fewer than two faults");
    if (!violation_)
      outlive_the_end();
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
    return violate("the run makes no progress; the driver waits for: " + driver_->coordinator().awaited_reports());
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

} // namespace troupe::simulation
