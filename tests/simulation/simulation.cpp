#include "simulation.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <utility>

namespace troupe::simulation {

using namespace actors;

namespace {

/// No schedule takes so many turns.
constexpr std::uint64_t most_turns = 60'000;

/// More failures than there are in any schedule.
constexpr std::uint32_t plenty = 1'000'000;

constexpr auto turn_length = std::chrono::milliseconds{10};

/// Of a run that waits only a short time for whoever is silent.
constexpr auto longest_wait = std::chrono::milliseconds{3'000};

/// How long a joiner may take, and the processes of an attempt together.
constexpr auto joiner_limit = std::chrono::milliseconds{4'000};
constexpr auto start_limit = std::chrono::milliseconds{15'000};

/// Nobody has anything to do for so many ticks: nobody ever will.
constexpr std::uint32_t most_idle_ticks = 200;

std::string text(std::uint64_t x) {
  return std::to_string(x);
}

std::string name_of(const worker_model& x) {
  return "worker " + text(x.id().value);
}

} // namespace

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

// -- the loop ---------------------------------------------------------------------------------------------------------

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

// -- the network ------------------------------------------------------------------------------------------------------

namespace {

/// The number of a question, or of an answer.
template <template <class> class Kind>
std::optional<std::uint64_t> number_of(const packet& what) {
  return std::visit(
      []<class T>(const T& x) -> std::optional<std::uint64_t> {
        if constexpr (requires { []<class Message>(const Kind<Message>&) {}(x); })
          return x.number;
        else
          return std::nullopt;
      },
      what);
}

} // namespace

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

// -- the clock --------------------------------------------------------------------------------------------------------

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
    committed_at_[furthest_] = std::max(committed_at_[furthest_], now_);
    return;
  }
}

void simulation::skips_loop(worker_model& who) {
  counts_.count(branch::loop_skipped);
  if (++skipped_[who.id()] >= program_.loops.size())
    violate(name_of(who) + " is told to skip more loops than the others can have completed");
}

void simulation::has_applied(worker_model& who, const number_chain& before, const number_chain& after) {
  if (who.has() == flaw::other_build)
    violate(name_of(who) + " is of another build, and trains");
  // One of another host may be alone.
  auto& hosts = hosts_[who.attempt()];
  hosts |= who.has() == flaw::other_numerics ? 2 : 1;
  if (hosts == 3)
    violate(name_of(who) + " trains beside one of another host");
  if (who.has() == flaw::other_plan && !driver_->coordinator().accepted().empty() &&
      driver_->coordinator().accepted().back().data_fingerprint == "data")
    violate(name_of(who) + " has another plan than the others, and trains");
  if (after != undisturbed_chain()[after.step.value])
    violate(name_of(who) + " has another state after step " + text(after.step.value) + " than the undisturbed run, " +
            (before == undisturbed_chain()[before.step.value] ? "and had the same before" : "and before, too"));
  if (after.step.value > furthest_) {
    furthest_ = after.step.value;
    committed_at_[furthest_] = now_;
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
    if (!far_side_.empty())
      cut_between_sides(*group);
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
  // All that had applied a step may be gone with the driver, before another heard that it is to apply it.
  const auto is_forgotten = std::exchange(formed_by_, drivers_) != drivers_ &&
                            next.decision.commit_point.value + 1 == commit_point_.value &&
                            std::ranges::none_of(living_, [this](auto id) {
                              const auto& who = processes_[id]->model;
                              return who.committed() >= commit_point_ && !driver_->is_given_up(who.id()) &&
                                     !driver_->is_told_lost(who.id()) && !driver_->is_silent(who.node());
                            });
  if (next.decision.commit_point < commit_point_ && !is_forgotten)
    violate("step " + text(next.decision.commit_point.value) + " is the commit point, and step " +
            text(commit_point_.value) + " was before");
  commit_point_ = next.decision.commit_point;
  auto is_behind = false;
  for (const auto& place : next.places) {
    auto* who = find(place.worker);
    if (driver_->is_given_up(place.worker))
      violate("worker " + text(place.worker.value) + " has been given up, and gets a place");
    if (who != nullptr && who->model.is_caught_up() &&
        std::ranges::find(next.joiners, place.worker) == next.joiners.end()) {
      counts_.count(branch::follower_let_in);
      if (who->model.committed() != commit_point_)
        violate(name_of(who->model) + " has followed the others to step " + text(who->model.committed().value) +
                ", and they are at step " + text(commit_point_.value));
    }
    if (who == nullptr || !who->model.has_state())
      continue;
    is_behind = is_behind || who->model.committed() < commit_point_;
    if (who->model.committed() > commit_point_)
      violate(name_of(who->model) + " has committed step " + text(who->model.committed().value) + ", and step " +
              text(commit_point_.value + 1) + " is to be computed again");
    if (who->model.committed() < commit_point_ && who->model.reduced() < commit_point_)
      violate(name_of(who->model) + " is to apply step " + text(commit_point_.value) + " without its gradient");
    if (!next.joiners.empty() && who->model.state().step != commit_point_)
      violate(name_of(who->model) + " is to give a joiner the state of step " + text(commit_point_.value) +
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
  commit_point_ = {};
  for (auto id : living_) {
    const auto& who = processes_[id]->model;
    if (!who.has_state() || who.has_failed() || who.attempt() + 1 != driver_->coordinator().attempt() ||
        driver_->is_told_lost(who.id()))
      continue;
    // Those that had the state, too, have died since: it is gone with them, as the exception's own process.
    if (driver_->is_let_go(who.id()))
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

void simulation::gives_up(std::uint32_t node, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) {
  // What its workers have is of no use to a run that fails.
  if (driver_->is_in_grace() || driver_->coordinator().over())
    return;
  check_given_up([node](const worker_model& who) { return who.node() == node; }, attempt, silent_for,
                 "node " + text(node));
}

void simulation::gives_up(worker_id worker, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) {
  // What it has is of no use if the run fails, or if it has failed itself, whether or not it has heard the answer.
  const auto* who = find(worker);
  if (!driver_->coordinator().goes_on() || who == nullptr || who->model.stands() == standing::finished ||
      driver_->is_let_go(worker))
    return;
  check_given_up([worker](const worker_model& who) { return who.id() == worker; }, attempt, silent_for,
                 "worker " + text(worker.value));
}

void simulation::check_given_up(const std::function<bool(const worker_model&)>& is_given_up, std::uint32_t attempt,
                                std::chrono::steady_clock::duration silent_for, const std::string& name) {
  const auto counts = [&](const worker_model& who) {
    return who.attempt() == attempt && !driver_->is_told_lost(who.id()) &&
           (who.has_state() || who.is_caught_up() || who.stands() == standing::finished);
  };
  // Also those that have ended, and whose end the driver has yet to hear of.
  const auto goes_on = !driver_->returned().empty() || std::ranges::any_of(processes_, [&](const auto& each) {
    return each != nullptr && !is_given_up(each->model) && !driver_->is_silent(each->model.node()) &&
           !driver_->is_silent(each->model.id()) && counts(each->model);
  });
  // Before the first step nothing can be lost: a member that has yet to hear of the beginning is as good.
  const auto has_state = std::ranges::any_of(living_, [&](auto id) {
    const auto& who = processes_[id]->model;
    return is_given_up(who) && counts(who) && who.committed() > who.restored();
  });
  if (has_state && !goes_on && silent_for < unreachable_after_)
    violate(name + " is given up, and nobody else has the state");
  if (has_state && !goes_on)
    counts_.count(branch::silent_for_too_long);
}

std::optional<std::vector<silent_worker>> simulation::silent_workers_of(std::uint32_t node) {
  const auto& self = nodes_[node];
  if (!self.lives || self.frozen || self.cut || driver_->is_silent(node) || driver_->is_fenced(node) ||
      driver_->is_away(node))
    return std::nullopt;
  std::vector<silent_worker> result;
  for (auto id : living_)
    if (const auto& each = *processes_[id]; each.model.node() == node && each.model.is_frozen() &&
                                            each.model.stands() != standing::starting && each.silent_from <= clock())
      result.push_back({worker_id{id}, "its process is stopped"});
  return result;
}

void simulation::tells_to_stop(const std::vector<worker_id>& whom) {
  stop_asked_after_ = furthest_;
  for (auto worker : whom)
    stop_heard_after_[worker.value] = steps_;
}

/// Whether a worker did many more steps although it had heard of the stop. One that is alone may do many before a
/// message reaches it.
bool simulation::has_ignored_the_stop() const {
  return stop_asked_after_ && std::ranges::any_of(driver_->returned(), [this](worker_id x) {
           const auto heard = stop_heard_after_.find(x.value);
           return (heard == stop_heard_after_.end() ? *stop_asked_after_ : heard->second) + 6 < steps_;
         });
}

void simulation::concludes(const conclude& x, const std::string&) {
  if (conclusion_)
    return violate("the run ends twice");
  conclusion_ = x;
  const auto& run = driver_->coordinator();
  if ((x.status == run_status::failed) != (x.reason.code != errc::none && x.reason.code != errc::stopped))
    violate("the run ends for a reason that is none: " + x.reason.message);
  if (x.status == run_status::failed)
    check_saved();
  if (x.status == run_status::failed)
    return check_cause(x);
  if (x.status == run_status::stopped && !stop_asked_)
    return violate("the run stops, and nobody has asked for it");
  if (x.status == run_status::stopped)
    counts_.count(branch::stopped);
  if (x.status == run_status::completed && has_ignored_the_stop())
    violate("the run does all its steps although it was to stop after step " + text(*stop_asked_after_));
  if (x.status == run_status::stopped && run.state_sha256().empty())
    return;
  check_failures();
  check_results();
}

/// What a member could save when the run failed is in a checkpoint, unless it was lost before it could be asked.
void simulation::check_saved() {
  const auto& saved = driver_->store().latest();
  const auto is_reached = [this](const process& x) {
    const auto& home = nodes_[x.model.node()];
    return x.model.lives() && !x.model.is_frozen() && !x.is_cut_off && home.lives && !home.frozen && !home.cut;
  };
  if (stop_asked_)
    return;
  // Nobody can apply a step whose body throws.
  const auto cannot_apply = [this](step_id step) {
    return program_.throws && program_.throws->step == step &&
           program_.throws->where == program::exception::place::behind_barrier;
  };
  // One that threw while others had the state was let go, and those may have died since.
  for (const auto& [worker, step] : driver_->waiting_at_the_end())
    // One whose body evaluates has no state to save: it is in the middle of a body that cannot go on without a group.
    if (is_reached(*processes_[worker.value]) && !driver_->is_let_go(worker) && !program_.evaluates_in(step) &&
        (saved ? saved->step.value : 0) + (cannot_apply(step) ? 1 : 0) < step.value)
      return violate("the run fails, and the state of step " + text(step.value) + " is lost, which worker " +
                     text(worker.value) + " has");
}

/// The cause that is named is one, and there was one.
void simulation::check_cause(const conclude& x) {
  const auto& all = driver_->coordinator().failures();
  auto is_cause = [](const failure_record& each) { return each.reason.code != errc::aborted && !each.consequence; };
  const auto named =
      std::ranges::find_if(all, [&](const auto& each) { return each.reason == x.reason && !each.consequence; });
  if (named == all.end())
    return violate("the run ends by what is no failure: " + x.reason.message);
  if (!is_cause(*named) && std::any_of(named, all.end(), is_cause))
    violate("the run ends by a consequence: " + x.reason.message);
  if (std::any_of(named + 1, all.end(), [&](const auto& each) { return !is_cause(each) && !each.consequence; }))
    violate("a consequence is told as a cause");
  if (!is_ground(x.reason))
    violate("the run fails: " + x.reason.message);
}

/// Whether anything has happened that a run may end by for this reason.
bool simulation::is_ground(const error& reason) const {
  const auto says = [&](const char* what) { return reason.message.find(what) != std::string::npos; };
  const auto few_are_allowed = most_failures_ < plenty;
  if (says("failure.max_failures"))
    counts_.count(branch::too_many_failures);
  if (throws_again_ && reason.code == errc::user_error)
    counts_.count(branch::ended_by_exception);
  if (says("scaling.wait_for_workers"))
    counts_.count(branch::held_too_long);
  if (says("ends at step"))
    counts_.count(branch::results_differ);
  if (reason.code == errc::user_error)
    return throws_again_ || (has_thrown_ && few_are_allowed);
  if (reason.code == errc::program_mismatch)
    return flaw_ == flaw::other_build && says("runs build another");
  if (reason.code == errc::mismatch)
    return (flaw_ == flaw::other_numerics && says("computes differently")) ||
           (flaw_ == flaw::other_plan && says("data fingerprint")) ||
           (flaw_ == flaw::other_result && says("ends at step"));
  if (reason.code == errc::worker_lost)
    return few_are_allowed || has_exited_;
  if (reason.code == errc::timed_out)
    return few_are_allowed || (was_held_ && says("scaling.wait_for_workers")) ||
           (has_hung_ && says("did not join in time")) || (group_hangs_ > 1 && says("no rank moves"));
  // The last failure that the run survived tells most of a group that is lost too often.
  const auto is_lost = reason.code == errc::node_lost || reason.code == errc::aborted ||
                       (reason.code == errc::unreachable && says(actors::reason_of_cut));
  return is_lost && few_are_allowed;
}

/// What is told of failures is what has happened, once, and no more of it than is allowed without a new step.
void simulation::check_failures() {
  step_id reached;
  // Since that step.
  std::set<generation_id> broken;
  std::vector<worker_id> lost;
  const auto& all = driver_->coordinator().failures();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& each = all[i];
    const auto code = each.reason.code;
    const auto* who = each.worker.value < processes_.size() ? processes_[each.worker.value].get() : nullptr;
    const auto is_loss = code == errc::worker_lost || code == errc::node_lost;
    const auto is_refusal = (code == errc::program_mismatch || code == errc::mismatch) && flaw_ != flaw::none;
    // It was given up by the driver before.
    const auto is_old = code == errc::stale_generation && drivers_ > 1;
    const auto is_cut_off = code == errc::unreachable && who != nullptr && driver_->is_told_lost(each.worker);
    if (!is_loss && !is_refusal && !is_old && !is_cut_off && code != errc::timed_out &&
        (code != errc::user_error || !has_thrown_))
      violate("a failure is told that was none: " + each.reason.message);
    if (is_loss && std::ranges::find(lost, each.worker) != lost.end())
      violate("worker " + text(each.worker.value) + " is told to be lost twice");
    if (is_loss)
      lost.push_back(each.worker);
    if (who != nullptr && who->model.lives() && code == errc::worker_lost)
      violate(name_of(who->model) + " lives, and is told to have failed: " + each.reason.message);
    const auto had_returned = is_loss && who != nullptr && who->model.stands() == standing::finished;
    if (driver_->furthest_at_failure(i) > std::exchange(reached, std::max(reached, driver_->furthest_at_failure(i))))
      broken.clear();
    if ((code == errc::worker_lost || code == errc::user_error) && driver_->was_member(each.worker) && !had_returned &&
        !driver_->was_without_state(each.worker))
      broken.insert(each.generation);
    if (broken.size() > most_failures_)
      return violate("the run survives " + text(broken.size()) + " failures without a new step, and " +
                     text(most_failures_) + " are allowed; the last is of worker " + text(each.worker.value) +
                     " in generation " + text(each.generation.value) + ", after step " + text(reached.value));
  }
}

/// A run that ends well ends with the undisturbed state.
void simulation::check_results() {
  const auto& run = driver_->coordinator();
  const auto step = run.final_step();
  const auto& last = program_.loops.back();
  if (conclusion_->status == run_status::completed && step.value != last.end)
    violate("the run is complete after step " + text(step.value) + " of " + text(last.end));
  if (conclusion_->status == run_status::stopped && program_.loops.size() > 1 &&
      step.value <= program_.loops[program_.loops.size() - 2].end)
    counts_.count(branch::stopped_before_a_later_loop);
  if (conclusion_->status == run_status::completed && has_thrown_) {
    counts_.count(branch::exception_survived);
    if (program_.throws->how == program::exception::recurrence::always && throws_again_ && members_threw_ > 1)
      violate("the run is complete although each member throws");
  }
  const auto others = std::ranges::count_if(
      driver_->returned(), [this](worker_id x) { return processes_[x.value]->model.has() == flaw::other_result; });
  if (others > 0 && static_cast<std::size_t>(others) < driver_->returned().size())
    violate("replicas differ at the end, and the run ends well");
  const auto& expected = undisturbed_chain()[step.value];
  if (run.state_sha256() != result_of(expected, flaw::none) &&
      (flaw_ != flaw::other_result || run.state_sha256() != result_of(expected, flaw_)))
    violate("the run ends with another state than the undisturbed one");
}

/// Whatever is still said, or wanted, has no effect any more.
void simulation::outlive_the_end() {
  if (!active_.empty())
    counts_.count(branch::spoken_after_the_end);
  for (int i = 0; i < 40 && take_random_turn(); ++i)
    ++now_;
  for (auto id : std::vector{living_})
    kill(*processes_[id], 128 + 9);
  for (int i = 0; i < 40 && take_random_turn(); ++i)
    ++now_;
  for (auto wish : {&run_coordinator::on_capacity, &run_coordinator::on_checkpoint_request, &run_coordinator::on_pause,
                    &run_coordinator::on_resume})
    driver_->ask(wish);
  for (auto each : {reminder::tick, reminder::start, reminder::drain, reminder::hold, reminder::grace})
    driver_->reached(each);
  driver_->resize(2);
  driver_->group_hangs();
  driver_->stop({false});
  driver_->stop({true});
}

std::optional<regroup_report> simulation::guess_report_of(worker_id worker) {
  auto* who = find(worker);
  if (who == nullptr || !who->model.has_state())
    return std::nullopt;
  regroup_report result;
  result.run = run_;
  result.worker = worker;
  result.generation = who->model.generation();
  result.position = worker_position::in_step{{who->model.committed(), 0, who->model.evaluations()},
                                             who->model.reduced().value == who->model.committed().value + 1};
  return result;
}

} // namespace troupe::simulation
