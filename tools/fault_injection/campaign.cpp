#include "campaign.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace troupe::chaos {

using namespace std::chrono_literals;

volatile std::sig_atomic_t signal_that_came = 0;

void heed_signals() {
  if (signal_that_came != 0)
    throw interrupted{signal_that_came};
}

namespace {

using clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

/// Between two looks at the run.
constexpr auto look_interval = 5ms;

/// How long a fault waits for somebody to hit, before it is given up: far longer than a worker takes to be replaced.
constexpr auto patience = 15s;

/// After so many in a row no more are tried.
constexpr int most_given_up = 3;

/// What the run has to do after the last fault, before it may stop: enough to show that it has healed.
constexpr std::uint64_t steps_after_last_fault = 50;
constexpr auto time_after_last_fault = 1500ms;

/// A worker that is killed after the last step is no failure.
constexpr double share_of_steps_disturbed = 0.95;

struct taking_back {
  clock::time_point due;
  std::function<void()> act;
};

std::string name_of(const worker_process& worker) {
  return "process " + std::to_string(worker.pid) +
         (worker.node == scene::no_node ? std::string{} : " on node " + std::to_string(worker.node + 1));
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
    while (run_.driver().running()) {
      heed_signals();
      look();
      if (clock::now() - progress_at_ > options_.hung_after) {
        report_.hung = run_.interrogate();
        return std::move(report_);
      }
      take_back(clock::now());
      if (!done_)
        inject();
      else if (!asked_to_stop_ && !options_.last_step && has_healed())
        ask_to_stop();
      std::this_thread::sleep_for(look_interval);
    }
    look();
    take_back(clock::time_point::max());
    report_.driver = run_.driver().wait();
    return std::move(report_);
  }

 private:
  void look() {
    run_.look();
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

  void take_back(clock::time_point now) {
    for (auto i = taking_back_.begin(); i != taking_back_.end();) {
      if (i->due > now) {
        ++i;
        continue;
      }
      auto act = std::move(i->act);
      i = taking_back_.erase(i);
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
    say("nobody is there whom " + std::string{to_string(next_.kind)} + " could hit: given up");
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
      text += ", for " + std::to_string(next_.lasts.count()) + " ms";
    say(text);
  }

  void take_back_later(std::function<void()> act) {
    taking_back_.push_back({clock::now() + next_.lasts, std::move(act)});
  }

  /// Does what is planned, if there is somebody to do it to.
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
      return hit_node();
    case fault_kind::fill_disk:
      return hit_disk();
    }
    return false;
  }

  bool hit_workers(std::size_t number_of_victims) {
    auto sound = run_.sound_workers();
    if (sound.size() < number_of_victims + (options_.allow_all ? 0 : 1))
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
      take_back_later([this, pid = victims.front().pid] { run_.revive(pid); });
    say_fault(names);
    return true;
  }

  bool hit_node() {
    auto sound = run_.sound_workers();
    std::vector<std::size_t> candidates;
    for (std::size_t node = 0; node < run_.nodes(); ++node) {
      auto here = std::ranges::count(sound, node, &worker_process::node);
      auto elsewhere = std::ssize(sound) - here;
      if (run_.node_is_sound(node) && (elsewhere > 0 || (here > 0 && options_.allow_all)))
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
    auto name = "node " + std::to_string(node + 1);
    if (next_.kind == fault_kind::kill_node) {
      run_.kill_node(node);
      // Of those that had not begun nobody needs to have known.
      for (const auto& worker : sound)
        if (worker.node == node)
          current_.killed.push_back(number(worker.pid));
      take_back_later([this, node] { run_.start_node_again(node); });
    } else if (next_.kind == fault_kind::freeze_node) {
      run_.freeze_node(node);
      if (with_workers)
        for (auto pid : there)
          run_.freeze(pid);
      name += with_workers ? " and its workers" : " alone";
      take_back_later([this, node, there, with_workers] {
        run_.revive_node(node);
        if (with_workers)
          for (auto pid : there)
            run_.revive(pid);
      });
    } else {
      run_.cut(node);
      take_back_later([this, node] { run_.mend(node); });
    }
    for (auto pid : there)
      current_.endangered.push_back(number(pid));
    say_fault(name);
    return true;
  }

  bool hit_disk() {
    if (disk_full_)
      return false;
    disk_full_ = true;
    run_.fill_disk();
    take_back_later([this] {
      run_.free_disk();
      disk_full_ = false;
    });
    say_fault("the disk of the checkpoints");
    return true;
  }

  bool has_healed() const {
    return taking_back_.empty() && step_ > step_at_last_fault_ + steps_after_last_fault &&
           clock::now() - last_change_ > time_after_last_fault;
  }

  void ask_to_stop() {
    asked_to_stop_ = true;
    say("all faults are done: the run is asked to stop");
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
  /// The last time that something was done or taken back.
  clock::time_point last_change_;
  /// When the last fault was injected, until a new generation makes a step.
  std::optional<clock::time_point> unhealed_;
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t step_at_last_fault_ = 0;
  std::vector<taking_back> taking_back_;
  std::size_t given_up_ = 0;
  int given_up_in_a_row_ = 0;
  bool disk_full_ = false;
  bool done_ = false;
  bool asked_to_stop_ = false;
};

} // namespace

campaign_report disturb(scene& run, const campaign_options& options) {
  return campaign{run, options}.disturb();
}

} // namespace troupe::chaos
