#include "injector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace troupe::chaos {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t flood_bytes = 1'000'000'000;
constexpr auto longest_flood = 10s;

constexpr std::size_t busy_loops_per_processor = 4;

/// How often workers are searched that sleep because of a frozen disk; each time reads much of /proc.
constexpr auto sleepers_interval = 50ms;

std::string name_of(const worker_process& worker) {
  return worker.node == scene::no_node ? fmt::format("process {}", worker.pid)
                                       : fmt::format("process {} on node {}", worker.pid, worker.node + 1);
}

std::uint32_t number(pid_t pid) {
  return static_cast<std::uint32_t>(pid);
}

} // namespace

bool injector::inject(const planned_fault& fault, injected_fault record) {
  fault_ = fault;
  current_ = std::move(record);
  if (!hit())
    return false;
  current_.left_none = run_.sound_workers().empty();
  faults_.push_back(std::move(current_));
  last_change_ = clock::now();
  return true;
}

void injector::look() {
  if (cut_data_)
    endanger_all(faults_[*cut_data_]);
  if (frozen_disk_)
    kill_sleeping_writer();
  undo_until(clock::now());
}

void injector::finish() {
  undo_until(clock::time_point::max());
}

void injector::undo_until(clock::time_point now) {
  for (auto i = undos_.begin(); i != undos_.end();) {
    if (i->due > now || !i->act()) {
      ++i;
      continue;
    }
    lasting_.push_back({i->began, std::chrono::system_clock::now()});
    i = undos_.erase(i);
    last_change_ = clock::now();
  }
}

void injector::undo_later(std::function<void()> act) {
  undo_after(fault_.lasts, [act = std::move(act)] {
    act();
    return true;
  });
}

void injector::undo_after(std::chrono::milliseconds least, std::function<bool()> act) {
  undos_.push_back({clock::now() + least, std::move(act), std::chrono::system_clock::now()});
}

void injector::say_fault(const std::string& whom) const {
  auto text = std::string{to_string(fault_.kind)};
  text.resize(std::max<std::size_t>(text.size() + 1, 12), ' ');
  text += whom;
  if (fault_.lasts > 0ms)
    text += fmt::format(", for {} ms", fault_.lasts.count());
  say_(text);
}

bool injector::hit() {
  switch (fault_.kind) {
  case fault_kind::kill:
    return hit_workers(1);
  case fault_kind::kill_two:
    return hit_workers(2);
  case fault_kind::freeze:
    return hit_workers(1);
  case fault_kind::kill_node:
  case fault_kind::freeze_node:
  case fault_kind::cut:
  case fault_kind::reset:
  case fault_kind::cut_control:
    return hit_node();
  case fault_kind::cut_data:
    return cut_data();
  case fault_kind::freeze_all:
    return freeze_all_workers();
  case fault_kind::freeze_all_nodes:
    return hit_all_nodes();
  case fault_kind::freeze_driver:
    return freeze_driver();
  case fault_kind::restart_driver:
    return restart_driver();
  case fault_kind::fill_disk:
    return fill_disk();
  case fault_kind::freeze_disk:
    return freeze_disk();
  case fault_kind::flood:
    return flood();
  case fault_kind::cpu_storm:
    return begin_cpu_storm();
  case fault_kind::unread_log:
    return leave_log_unread();
  }
  return false;
}

bool injector::hit_workers(std::size_t number_of_victims) {
  auto sound = run_.sound_workers();
  // A frozen worker lives: the run waits if no other worker has the state.
  const auto may_be_last = allow_all_ || fault_.kind == fault_kind::freeze;
  if (sound.size() < number_of_victims + (may_be_last ? 0 : 1))
    return false;
  std::string names;
  std::vector<worker_process> victims;
  for (auto draw = fault_.draw; victims.size() < number_of_victims; draw /= 97) {
    auto place = sound.begin() + static_cast<std::ptrdiff_t>(draw % sound.size());
    names += (names.empty() ? "" : ", ") + name_of(*place);
    victims.push_back(*place);
    sound.erase(place);
  }
  for (const auto& victim : victims) {
    if (fault_.kind == fault_kind::freeze)
      run_.freeze(victim.pid);
    else
      run_.kill(victim.pid);
  }
  for (const auto& victim : victims)
    (fault_.kind == fault_kind::freeze ? current_.endangered : current_.killed).push_back(number(victim.pid));
  if (fault_.kind == fault_kind::freeze)
    undo_later([this, pid = victims.front().pid] { run_.revive(pid); });
  say_fault(names);
  return true;
}

bool injector::hit_node() {
  auto sound = run_.sound_workers();
  std::vector<std::size_t> candidates;
  for (std::size_t node = 0; node < run_.nodes(); ++node) {
    auto here = std::ranges::count(sound, node, &worker_process::node);
    auto elsewhere = std::ssize(sound) - here;
    // An unreachable worker lives: the run waits if no other worker has the state.
    const auto may_be_last = allow_all_ || fault_.kind != fault_kind::kill_node;
    if (run_.node_is_sound(node) && (elsewhere > 0 || (here > 0 && may_be_last)))
      candidates.push_back(node);
  }
  // Rather one with workers: after a node has been lost all may be on the other.
  auto has_workers = [&](std::size_t node) { return std::ranges::count(sound, node, &worker_process::node) > 0; };
  if (std::ranges::any_of(candidates, has_workers))
    std::erase_if(candidates, [&](std::size_t node) { return !has_workers(node); });
  if (candidates.empty())
    return false;
  auto node = candidates[fault_.draw % candidates.size()];
  auto with_workers = (fault_.draw >> 32) % 2 == 1;
  std::vector<pid_t> there;
  for (const auto& worker : run_.workers())
    if (worker.node == node)
      there.push_back(worker.pid);
  auto name = fmt::format("node {}", node + 1);
  if (fault_.kind == fault_kind::kill_node) {
    run_.kill_node(node);
    // The run need not have known workers that had not started to train.
    for (const auto& worker : sound)
      if (worker.node == node)
        current_.killed.push_back(number(worker.pid));
    undo_later([this, node] { run_.start_node_again(node); });
  } else if (fault_.kind == fault_kind::freeze_node) {
    run_.freeze_node(node);
    if (with_workers)
      for (auto pid : there)
        run_.freeze(pid);
    name += with_workers ? " and its workers" : " alone";
    undo_later([this, node, there, with_workers] {
      run_.revive_node(node);
      if (with_workers)
        for (auto pid : there)
          run_.revive(pid);
    });
  } else if (fault_.kind == fault_kind::reset) {
    run_.reset(node);
  } else if (fault_.kind == fault_kind::cut_control) {
    run_.cut_control(node);
    undo_later([this, node] { run_.mend_control(node); });
  } else {
    run_.cut(node);
    undo_later([this, node] { run_.mend(node); });
  }
  for (auto pid : there)
    current_.endangered.push_back(number(pid));
  say_fault(name);
  return true;
}

bool injector::freeze_all_workers() {
  std::vector<pid_t> all;
  for (const auto& worker : run_.sound_workers()) {
    all.push_back(worker.pid);
    current_.endangered.push_back(number(worker.pid));
  }
  if (all.empty())
    return false;
  for (auto pid : all)
    run_.freeze(pid);
  undo_later([this, all] {
    for (auto pid : all)
      run_.revive(pid);
  });
  say_fault("all workers");
  return true;
}

void injector::endanger_all(injected_fault& fault) {
  for (const auto& worker : run_.workers())
    if (std::ranges::find(fault.endangered, number(worker.pid)) == fault.endangered.end())
      fault.endangered.push_back(number(worker.pid));
}

/// The sides of the cut at the time of the run's decision are unknown here, so any worker may be given up, even one
/// that is started meanwhile.
bool injector::cut_data() {
  for (std::size_t node = 0; node < run_.nodes(); ++node)
    if (!run_.node_is_sound(node))
      return false;
  if (run_.nodes() < 2 || run_.sound_workers().empty())
    return false;
  endanger_all(current_);
  const auto node = fault_.draw % run_.nodes();
  run_.cut_data(node);
  cut_data_ = faults_.size();
  undo_later([this, node] {
    run_.mend_data(node);
    cut_data_.reset();
  });
  say_fault(fmt::format("node {}", node + 1));
  return true;
}

bool injector::hit_all_nodes() {
  for (std::size_t node = 0; node < run_.nodes(); ++node)
    if (!run_.node_is_sound(node))
      return false;
  for (const auto& worker : run_.workers())
    current_.endangered.push_back(number(worker.pid));
  for (std::size_t node = 0; node < run_.nodes(); ++node)
    run_.freeze_node(node);
  undo_later([this] {
    for (std::size_t node = 0; node < run_.nodes(); ++node)
      run_.revive_node(node);
  });
  say_fault("all nodes");
  return true;
}

bool injector::freeze_driver() {
  if (driver_ != driver_state::sound)
    return false;
  driver_ = driver_state::frozen;
  run_.freeze_driver();
  undo_later([this] {
    run_.revive_driver();
    driver_ = driver_state::sound;
  });
  say_fault("the driver");
  return true;
}

bool injector::restart_driver() {
  if (driver_ != driver_state::sound || !may_kill_driver_)
    return false;
  driver_ = driver_state::gone;
  run_.kill_driver();
  for (const auto& worker : run_.workers())
    current_.endangered.push_back(number(worker.pid));
  undo_after(fault_.lasts, [this] {
    if (!run_.start_driver_again())
      return false;
    // The result lists only failures that the new driver sees, so earlier kills need not appear in it.
    for (auto& fault : faults_)
      for (auto pid : std::exchange(fault.killed, {}))
        fault.endangered.push_back(pid);
    driver_ = driver_state::sound;
    return true;
  });
  say_fault("the driver");
  return true;
}

bool injector::fill_disk() {
  // Writing to a frozen disk, or freeing space on it, blocks.
  if (disk_ != disk_state::sound)
    return false;
  disk_ = disk_state::full;
  run_.disk().fill();
  undo_later([this] {
    run_.disk().free();
    disk_ = disk_state::sound;
  });
  say_fault("the disk for checkpoints");
  return true;
}

bool injector::freeze_disk() {
  if (disk_ != disk_state::sound || !run_.disk().freeze())
    return false;
  disk_ = disk_state::frozen;
  const auto kills = fault_.draw % 2 == 1;
  if (kills)
    frozen_disk_ = faults_.size();
  undo_later([this] {
    run_.disk().thaw();
    disk_ = disk_state::sound;
    frozen_disk_.reset();
  });
  say_fault(kills ? "the disk for checkpoints, and kills a worker that writes" : "the disk for checkpoints");
  return true;
}

void injector::kill_sleeping_writer() {
  if (clock::now() < looked_for_sleepers_ + sleepers_interval)
    return;
  looked_for_sleepers_ = clock::now();
  const auto pid = run_.worker_in_uninterruptible_sleep();
  if (pid == 0 || (run_.sound_workers().size() < 2 && !allow_all_))
    return;
  run_.kill(pid);
  faults_[*frozen_disk_].killed.push_back(number(pid));
  frozen_disk_.reset();
  say_(fmt::format("kill        process {}, which sleeps uninterruptibly", pid));
}

bool injector::flood() {
  const auto sound = run_.sound_workers();
  if (flood_ || sound.empty())
    return false;
  const auto& victim = sound[fault_.draw % sound.size()];
  flood_.emplace(victim.pid, flood_bytes);
  undo_after(0ms, [this, pid = victim.pid, end = clock::now() + longest_flood] {
    if (!flood_->over() && clock::now() < end)
      return false;
    say_(fmt::format("flood       of process {} is over after {} MB", pid, flood_->written_bytes() / 1'000'000));
    flood_.reset();
    return true;
  });
  say_fault(name_of(victim));
  return true;
}

bool injector::begin_cpu_storm() {
  if (storm_)
    return false;
  const auto loops = busy_loops_per_processor * std::max(std::thread::hardware_concurrency(), 1U);
  storm_.emplace(loops);
  undo_later([this] { storm_.reset(); });
  say_fault(fmt::format("{} busy loops", loops));
  return true;
}

bool injector::leave_log_unread() {
  std::vector<std::size_t> candidates;
  for (std::size_t node = 0; node < run_.nodes(); ++node)
    if (run_.node_is_sound(node) && !run_.log_of(node).held())
      candidates.push_back(node);
  if (driver_ == driver_state::sound && !run_.log_of(scene::no_node).held())
    candidates.push_back(scene::no_node);
  if (candidates.empty())
    return false;
  const auto whose = candidates[fault_.draw % candidates.size()];
  run_.log_of(whose).hold();
  undo_later([this, whose] { run_.log_of(whose).release(); });
  say_fault(whose == scene::no_node ? "the driver" : fmt::format("node {}", whose + 1));
  return true;
}

} // namespace troupe::chaos
