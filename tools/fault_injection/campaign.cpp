#include "campaign.hpp"

#include "injector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>
#include <unistd.h>
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

/// How often memory is measured.
constexpr auto measure_interval = 100ms;

/// Without a line for so long, processes are taken to have more of them than are under way.
constexpr auto lines_wait_after = 200ms;

/// How long a fault waits for a victim before it is given up; far longer than the replacement of a worker takes.
constexpr auto patience = 15s;

/// After this many faults in a row without a victim, no more are tried.
constexpr int most_given_up = 3;

/// How far the run must get after the last fault before it may stop: enough to show that it has healed.
constexpr std::uint64_t steps_after_last_fault = 50;
constexpr auto time_after_last_fault = 1500ms;

/// Faults end before the last steps, because a worker that is killed after its last step is not reported as a failure.
constexpr double share_of_steps_disturbed = 0.95;

std::uint64_t resident_bytes(pid_t pid) {
  auto in = std::istringstream{testing::read_file(fmt::format("/proc/{}/statm", pid))};
  auto all = std::uint64_t{0};
  auto resident = std::uint64_t{0};
  in >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

class campaign {
 public:
  campaign(scene& run, const campaign_options& options)
      : run_(run),
        options_(options),
        schedule_(options.seed, options.mean_interval, options.kinds),
        faults_(run, options.allow_all, [this](const std::string& what) { say(what); }) {}

  campaign_report disturb() {
    progress_at_ = clock::now();
    while (faults_.driver_is_gone() || run_.driver().running()) {
      check_signals();
      look();
      if (clock::now() - progress_at_ > options_.hung_after) {
        report_.hung = run_.interrogate();
        return take_report();
      }
      faults_.look();
      if (stage_ == stage::disturbing)
        inject();
      else if (stage_ == stage::waiting && !options_.last_step && has_healed())
        ask_to_stop();
      std::this_thread::sleep_for(look_interval);
    }
    look();
    faults_.finish();
    report_.driver = run_.driver().wait();
    return take_report();
  }

 private:
  campaign_report take_report() {
    report_.faults = faults_.faults();
    report_.lasting = faults_.lasting();
    return std::move(report_);
  }

  void look() {
    run_.look();
    measure();
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
    progressed_under_ = run_.driver().pid();
  }

  /// A driver's memory counts once the run has made a step with it: before, it grows.
  void measure() {
    const auto now = clock::now();
    if (now < measured_at_ + measure_interval)
      return;
    measured_at_ = now;
    const auto seconds = std::chrono::duration<double>(now - begin_).count();
    if (run_.driver().pid() == progressed_under_)
      report_.driver_memory.add(resident_bytes(progressed_under_), seconds);
    for (std::size_t node = 0; step_ > 0 && node < run_.nodes(); ++node)
      report_.node_memory.add(resident_bytes(run_.node(node).pid()), seconds);
  }

  void plan() {
    next_ = schedule_.next();
    due_ = clock::now() + next_.after;
    waiting_since_.reset();
  }

  void inject() {
    auto now = clock::now();
    if (step_ == 0 || now < due_)
      return;
    if (options_.duration > 0ms && now - begin_ > options_.duration) {
      stage_ = stage::waiting;
      return;
    }
    if (options_.last_step &&
        static_cast<double>(step_) > share_of_steps_disturbed * static_cast<double>(*options_.last_step)) {
      say("the run is nearly over: no further faults");
      stage_ = stage::waiting;
      return;
    }
    if (!faults_.inject(next_, {next_.kind,
                                duration_cast<milliseconds>(now - begin_),
                                step_,
                                now - progress_at_ > lines_wait_after,
                                {},
                                {},
                                false})) {
      if (!waiting_since_)
        waiting_since_ = now;
      if (now - *waiting_since_ > patience)
        give_up();
      return;
    }
    given_up_in_a_row_ = 0;
    unhealed_ = faults_.last_change();
    step_at_last_fault_ = step_;
    count_fault();
  }

  void give_up() {
    ++given_up_;
    say(fmt::format("{} found no victim: given up", to_string(next_.kind)));
    if (++given_up_in_a_row_ == most_given_up) {
      say("no further faults");
      stage_ = stage::waiting;
    } else {
      count_fault();
    }
  }

  void count_fault() {
    if (options_.faults > 0 && faults_.faults().size() + given_up_ == options_.faults)
      stage_ = stage::waiting;
    else
      plan();
  }

  void say(const std::string& what) const {
    auto seconds = std::chrono::duration<double>(clock::now() - begin_).count();
    std::printf("%8.2f s  step %-8llu %s\n", seconds, static_cast<unsigned long long>(step_), what.c_str());
    std::fflush(stdout);
  }

  bool has_healed() const {
    return faults_.idle() && step_ > step_at_last_fault_ + steps_after_last_fault &&
           clock::now() - faults_.last_change() > time_after_last_fault;
  }

  void ask_to_stop() {
    stage_ = stage::stopping;
    faults_.keep_driver();
    say("all faults are done: asking the run to stop");
    run_.driver().signal(SIGTERM);
  }

  scene& run_;
  const campaign_options& options_;
  schedule schedule_;
  injector faults_;
  campaign_report report_;
  planned_fault next_;
  clock::time_point begin_;
  clock::time_point due_;
  std::optional<clock::time_point> waiting_since_;
  clock::time_point progress_at_;
  /// The driver under which the run has last made a step.
  pid_t progressed_under_ = 0;
  clock::time_point measured_at_;
  /// When the last fault was injected, until a new generation makes a step.
  std::optional<clock::time_point> unhealed_;
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t step_at_last_fault_ = 0;
  std::size_t given_up_ = 0;
  int given_up_in_a_row_ = 0;
  enum class stage : std::uint8_t {
    /// Faults are injected.
    disturbing,
    /// All faults are done.
    waiting,
    /// The run was asked to stop.
    stopping,
  };
  stage stage_ = stage::disturbing;
};

} // namespace

void memory_range::add(std::uint64_t bytes, double seconds) {
  if (bytes == 0)
    return;
  least_bytes = least_bytes == 0 ? bytes : std::min(least_bytes, bytes);
  if (bytes > most_bytes)
    most_at = seconds;
  most_bytes = std::max(most_bytes, bytes);
  last_bytes = bytes;
}

campaign_report disturb(scene& run, const campaign_options& options) {
  return campaign{run, options}.disturb();
}

} // namespace troupe::chaos
