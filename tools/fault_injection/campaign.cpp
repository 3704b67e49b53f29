#include "campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace troupe::chaos {

using namespace std::chrono_literals;

volatile std::sig_atomic_t received_signal = 0;

void check_signals() {
  if (received_signal != 0)
    throw interrupted{received_signal};
}

namespace {

using clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

/// How often the state of the run is checked.
constexpr auto look_interval = 5ms;

/// How long a fault waits for a victim before it is given up; far longer than the replacement of a worker takes.
constexpr auto patience = 15s;

/// After this many faults in a row without a victim, no more are tried.
constexpr int most_given_up = 3;

/// How far the run must get after the last fault before it may stop: enough to show that it has healed.
constexpr std::uint64_t steps_after_last_fault = 50;
constexpr auto time_after_last_fault = 1500ms;

/// Faults end before the last steps, because a worker that is killed after its last step is not reported as a failure.
constexpr double share_of_steps_disturbed = 0.95;

struct pending_undo {
  clock::time_point due;
  std::function<void()> act;
};

std::string name_of(const worker_process& worker) {
  return worker.node == scene::no_node ? fmt::format("process {}", worker.pid)
                                       : fmt::format("process {} on node {}", worker.pid, worker.node + 1);
}

std::uint32_t number(pid_t pid) {
  return static_cast<std::uint32_t>(pid);
}

class campaign {
 public:
  campaign(scene& run, const campaign_options& options)
      : run_(run), options_(options), schedule_(options.seed, options.mean_interval, options.kinds) {}

  campaign_report disturb() {
    progress_at_ = clock::now();
    while (driver_ == driver_state::gone || run_.driver().running()) {
      check_signals();
      look();
      if (clock::now() - progress_at_ > options_.hung_after) {
        report_.hung = run_.interrogate();
        return std::move(report_);
      }
      undo_until(clock::now());
      if (!done_)
        inject();
      else if (!asked_to_stop_ && !options_.last_step && has_healed())
        ask_to_stop();
      std::this_thread::sleep_for(look_interval);
    }
    look();
    undo_until(clock::time_point::max());
    report_.driver = run_.driver().wait();
    return std::move(report_);
  }

 private:
  void look() {
    run_.look();
    if (cut_data_)
      endanger_all(report_.faults[*cut_data_]);
    if (run_.step() == step_ && run_.generation() == generation_)
      return;
    auto now = clock::now();
    if (step_ == 0) {
      begin_ = now;
      plan();
    }
    if (run_.generation() > generation_ && generation_ > 0 && unhealed_) {
      report_.seconds_to_heal.push_back(std::chrono::duration<double>(now - *unhealed_).count());
      unhealed_.reset();
    }
    step_ = run_.step();
    generation_ = run_.generation();
    progress_at_ = now;
  }

  void plan() {
    next_ = schedule_.next();
    due_ = clock::now() + next_.after;
    waiting_since_.reset();
  }

  void undo_until(clock::time_point now) {
    for (auto i = undos_.begin(); i != undos_.end();) {
      if (i->due > now) {
        ++i;
        continue;
      }
      auto act = std::move(i->act);
      i = undos_.erase(i);
      act();
      last_change_ = clock::now();
    }
  }

  void inject() {
    auto now = clock::now();
    if (step_ == 0 || now < due_)
      return;
    if (options_.duration > 0ms && now - begin_ > options_.duration) {
      done_ = true;
      return;
    }
    if (options_.last_step &&
        static_cast<double>(step_) > share_of_steps_disturbed * static_cast<double>(*options_.last_step)) {
      say("the run is nearly over: no further faults");
      done_ = true;
      return;
    }
    current_ = {next_.kind, duration_cast<milliseconds>(now - begin_), step_, {}, {}, false};
    if (!hit()) {
      if (!waiting_since_)
        waiting_since_ = now;
      if (now - *waiting_since_ > patience)
        give_up();
      return;
    }
    given_up_in_a_row_ = 0;
    current_.left_none = run_.sound_workers().empty();
    report_.faults.push_back(current_);
    unhealed_ = last_change_ = clock::now();
    step_at_last_fault_ = step_;
    count_fault();
  }

  void give_up() {
    ++given_up_;
    say(fmt::format("{} found no victim: given up", to_string(next_.kind)));
    if (++given_up_in_a_row_ == most_given_up) {
      say("no further faults");
      done_ = true;
    } else {
      count_fault();
    }
  }

  void count_fault() {
    done_ = options_.faults > 0 && report_.faults.size() + given_up_ == options_.faults;
    if (!done_)
      plan();
  }

  void say(const std::string& what) const {
    auto seconds = std::chrono::duration<double>(clock::now() - begin_).count();
    std::printf("%8.2f s  step %-8llu %s\n", seconds, static_cast<unsigned long long>(step_), what.c_str());
    std::fflush(stdout);
  }

  void say_fault(const std::string& whom) const {
    auto text = std::string{to_string(next_.kind)};
    text.resize(std::max<std::size_t>(text.size() + 1, 12), ' ');
    text += whom;
    if (next_.lasts > 0ms)
      text += fmt::format(", for {} ms", next_.lasts.count());
    say(text);
  }

  void undo_later(std::function<void()> act) { undos_.push_back({clock::now() + next_.lasts, std::move(act)}); }

  /// Injects the planned fault. False if there is no victim.
  bool hit() {
    switch (next_.kind) {
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
      return hit_disk();
    }
    return false;
  }

  bool hit_workers(std::size_t number_of_victims) {
    auto sound = run_.sound_workers();
    // A frozen worker lives: the run waits if nobody else has its state.
    const auto may_be_last = options_.allow_all || next_.kind == fault_kind::freeze;
    if (sound.size() < number_of_victims + (may_be_last ? 0 : 1))
      return false;
    std::string names;
    std::vector<worker_process> victims;
    for (auto draw = next_.draw; victims.size() < number_of_victims; draw /= 97) {
      auto place = sound.begin() + static_cast<std::ptrdiff_t>(draw % sound.size());
      names += (names.empty() ? "" : ", ") + name_of(*place);
      victims.push_back(*place);
      sound.erase(place);
    }
    for (const auto& victim : victims) {
      if (next_.kind == fault_kind::freeze)
        run_.freeze(victim.pid);
      else
        run_.kill(victim.pid);
    }
    for (const auto& victim : victims)
      (next_.kind == fault_kind::freeze ? current_.endangered : current_.killed).push_back(number(victim.pid));
    if (next_.kind == fault_kind::freeze)
      undo_later([this, pid = victims.front().pid] { run_.revive(pid); });
    say_fault(names);
    return true;
  }

  bool hit_node() {
    auto sound = run_.sound_workers();
    std::vector<std::size_t> candidates;
    for (std::size_t node = 0; node < run_.nodes(); ++node) {
      auto here = std::ranges::count(sound, node, &worker_process::node);
      auto elsewhere = std::ssize(sound) - here;
      // Who cannot be reached lives: the run waits if nobody else has its state.
      const auto may_be_last = options_.allow_all || next_.kind != fault_kind::kill_node;
      if (run_.node_is_sound(node) && (elsewhere > 0 || (here > 0 && may_be_last)))
        candidates.push_back(node);
    }
    // Rather one with workers: after a node has been lost all may be on the other.
    auto has_workers = [&](std::size_t node) { return std::ranges::count(sound, node, &worker_process::node) > 0; };
    if (std::ranges::any_of(candidates, has_workers))
      std::erase_if(candidates, [&](std::size_t node) { return !has_workers(node); });
    if (candidates.empty())
      return false;
    auto node = candidates[next_.draw % candidates.size()];
    auto with_workers = (next_.draw >> 32) % 2 == 1;
    std::vector<pid_t> there;
    for (const auto& worker : run_.workers())
      if (worker.node == node)
        there.push_back(worker.pid);
    auto name = fmt::format("node {}", node + 1);
    if (next_.kind == fault_kind::kill_node) {
      run_.kill_node(node);
      // The run need not have known workers that had not started to train.
      for (const auto& worker : sound)
        if (worker.node == node)
          current_.killed.push_back(number(worker.pid));
      undo_later([this, node] { run_.start_node_again(node); });
    } else if (next_.kind == fault_kind::freeze_node) {
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
    } else if (next_.kind == fault_kind::reset) {
      run_.reset(node);
    } else if (next_.kind == fault_kind::cut_control) {
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

  bool freeze_all_workers() {
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

  void endanger_all(injected_fault& fault) {
    for (const auto& worker : run_.workers())
      if (std::ranges::find(fault.endangered, number(worker.pid)) == fault.endangered.end())
        fault.endangered.push_back(number(worker.pid));
  }

  /// Who is on which side of the cut when the run decides between them is not known here: anybody may be given up, also
  /// who is started meanwhile.
  bool cut_data() {
    for (std::size_t node = 0; node < run_.nodes(); ++node)
      if (!run_.node_is_sound(node))
        return false;
    if (run_.nodes() < 2 || run_.sound_workers().empty())
      return false;
    endanger_all(current_);
    const auto node = next_.draw % run_.nodes();
    run_.cut_data(node);
    cut_data_ = report_.faults.size();
    undo_later([this, node] {
      run_.mend_data(node);
      cut_data_.reset();
    });
    say_fault(fmt::format("node {}", node + 1));
    return true;
  }

  bool hit_all_nodes() {
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

  bool freeze_driver() {
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

  bool restart_driver() {
    if (driver_ != driver_state::sound || asked_to_stop_)
      return false;
    driver_ = driver_state::gone;
    run_.kill_driver();
    for (const auto& worker : run_.workers())
      current_.endangered.push_back(number(worker.pid));
    undo_later([this] {
      // The result lists what this one sees.
      for (auto& fault : report_.faults)
        for (auto pid : std::exchange(fault.killed, {}))
          fault.endangered.push_back(pid);
      run_.start_driver_again();
      driver_ = driver_state::sound;
    });
    say_fault("the driver");
    return true;
  }

  bool hit_disk() {
    if (disk_full_)
      return false;
    disk_full_ = true;
    run_.fill_disk();
    undo_later([this] {
      run_.free_disk();
      disk_full_ = false;
    });
    say_fault("the disk for checkpoints");
    return true;
  }

  bool has_healed() const {
    return undos_.empty() && step_ > step_at_last_fault_ + steps_after_last_fault &&
           clock::now() - last_change_ > time_after_last_fault;
  }

  void ask_to_stop() {
    asked_to_stop_ = true;
    say("all faults are done: asking the run to stop");
    run_.driver().signal(SIGTERM);
  }

  scene& run_;
  const campaign_options& options_;
  schedule schedule_;
  campaign_report report_;
  planned_fault next_;
  injected_fault current_;
  clock::time_point begin_;
  clock::time_point due_;
  std::optional<clock::time_point> waiting_since_;
  clock::time_point progress_at_;
  /// When a fault was last injected or undone.
  clock::time_point last_change_;
  /// When the last fault was injected, until a new generation makes a step.
  std::optional<clock::time_point> unhealed_;
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t step_at_last_fault_ = 0;
  std::vector<pending_undo> undos_;
  /// The index of the fault that has cut the data network; empty if that carries.
  std::optional<std::size_t> cut_data_;
  std::size_t given_up_ = 0;
  int given_up_in_a_row_ = 0;
  bool disk_full_ = false;
  enum class driver_state : std::uint8_t { sound, frozen, gone };
  driver_state driver_ = driver_state::sound;
  bool done_ = false;
  bool asked_to_stop_ = false;
};

} // namespace

campaign_report disturb(scene& run, const campaign_options& options) {
  return campaign{run, options}.disturb();
}

} // namespace troupe::chaos
