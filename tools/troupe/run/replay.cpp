#include "run/commands.hpp"

#include "checkpoint/commands.hpp"
#include "run/ledger.hpp"
#include "run/run_json.hpp"

#include <troupe/runtime/program.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

/// The program that runs, for a signal that is to end this one: it removes the directory then.
std::atomic<pid_t> running_program = 0;
std::atomic<int> ended_by_signal = 0;

void end_program(int signal) {
  ended_by_signal = signal;
  if (const auto program = running_program.load(); program > 0)
    ::kill(program, SIGTERM);
}

/// The signals that end a replay.
constexpr std::array ending_signals{SIGTERM, SIGHUP};

void handle_ending_signals(void (*handler)(int)) {
  for (const auto signal : ending_signals)
    std::signal(signal, handler);
}

/// A process to start: its arguments, working directory and one more variable.
struct process_to_run {
  std::vector<std::string> argv;
  fs::path directory;
  std::string replay_file;
};

/// Returns how it ended, as `wait` tells it.
expected<int> run_to_end(const process_to_run& what) {
  std::vector<char*> argv;
  for (const auto& each : what.argv)
    argv.push_back(const_cast<char*>(each.c_str())); // NOLINT(cppcoreguidelines-pro-type-const-cast)
  argv.push_back(nullptr);
  // One that comes now is delivered to the program, or to this process when it knows the program.
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const auto signal : ending_signals)
    ::sigaddset(&ending, signal);
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  const auto child = ::fork();
  if (child == 0) {
    handle_ending_signals(SIG_DFL);
    ::pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    // The run may have been made elsewhere.
    if (::chdir(what.directory.c_str()) != 0)
      fmt::print(stderr, "troupe replay: {} is not here; the program runs in the present directory\n",
                 what.directory.string());
    ::setenv("TROUPE_REPLAY", what.replay_file.c_str(), 1);
    ::execvp(argv.front(), argv.data());
    fmt::print(stderr, "troupe replay: cannot start {}: {}\n", what.argv.front(), std::strerror(errno));
    ::_exit(127);
  }
  running_program = child;
  ::pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
  if (child < 0)
    return fail(system_error("cannot start " + what.argv.front()));
  if (ended_by_signal != 0)
    ::kill(child, SIGTERM);
  // Ctrl-C is for the program, or its debugger.
  const auto before = std::signal(SIGINT, SIG_IGN);
  auto status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
  running_program = 0;
  std::signal(SIGINT, before);
  if (ended_by_signal != 0)
    return fail(errc::stopped, "stopped");
  return status;
}

class replayer {
 public:
  explicit replayer(replay_arguments given) : given_(std::move(given)) {
    given_.until = given_.until == 0 ? given_.step : given_.until;
  }

  expected<int> run() {
    TROUPE_TRY(run_, read_run_json(given_.run));
    TROUPE_TRY(auto recorded, digest_ledger::read(given_.run));
    TROUPE_TRY(check(recorded));
    // Before anything is made that is to be removed.
    handle_ending_signals(end_program);
    // Absolute: the program runs in another directory.
    TROUPE_TRY(auto scratch, serialization::temporary_directory::make("troupe-replay"));
    TROUPE_TRY(const auto status, start(scratch.path()));
    auto repeated = digest_ledger::read(runs_in(scratch.path()) / run_.at("name").get<std::string>());
    if (!given_.debug && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
      return fail(errc::worker_lost,
                  fmt::format("the program ended with {} before step {} was repeated; what it said is above",
                              WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                                : fmt::format("signal {}", WTERMSIG(status)),
                              given_.until));
    if (!repeated)
      return fail(errc::not_found, "the program ended before a step was repeated");
    return judge(recorded, *repeated);
  }

 private:
  [[nodiscard]] static fs::path runs_in(const fs::path& scratch) { return scratch / "runs"; }

  /// Whether these steps of this run can be repeated by the program as it is.
  expected<void> check(const digest_ledger& recorded) {
    const auto& steps = recorded.steps();
    if (given_.until < given_.step)
      return fail(errc::invalid_argument, fmt::format("--until {} comes before --step {}", given_.until, given_.step));
    if (steps.lower_bound(given_.step) == steps.upper_bound(given_.until))
      return fail(errc::not_found, fmt::format("the ledger has no digests of steps {} to {}: it has those of steps {} "
                                               "to {}",
                                               given_.step, given_.until, steps.begin()->first, steps.rbegin()->first));
    if (given_.until > steps.rbegin()->first)
      return fail(errc::not_found,
                  fmt::format("the ledger ends with step {}, before --until {}", steps.rbegin()->first, given_.until));
    if (!run_.contains("replay"))
      return fail(errc::not_found, given_.run.string() + " was written by an earlier release of Troupe, which did not "
                                                         "note what a replay needs");
    if (!run_.at("replay").at("exact").get<bool>())
      return fail(errc::invalid_argument,
                  "the run summed gradients in the transport's order (reduction_mode::fast), so "
                  "its steps cannot be repeated bit for bit");
    if (given_.program.empty())
      given_.program = run_.at("program").get<std::string>();
    given_.program = fs::absolute(given_.program);
    TROUPE_TRY(const auto program, runtime::program_file::open(given_.program.string()));
    const auto then = run_.at("build_id").get<std::string>();
    if (program.identity().build_id != then)
      return fail(errc::mismatch, fmt::format("{} is not the program of this run (build {} now, {} then): build the "
                                              "sources of then, or name a copy of it with --program",
                                              given_.program.string(), program.identity().build_id, then));
    return find_checkpoint();
  }

  /// The newest one before the steps. Fails if another program, or another configuration, computed some of what comes
  /// after it: run.json describes the last ones only.
  expected<void> find_checkpoint() {
    if (const auto found = serialization::list_candidates(given_.run / "checkpoints"))
      for (const auto& each : *found)
        if (each.step.value < given_.step)
          begins_after_ = each.step.value;
    const auto& how = run_.at("replay");
    const auto since = how.value("since_step", std::uint64_t{1});
    if (given_.step < since)
      return fail(errc::mismatch,
                  fmt::format("step {} was computed by an earlier program or with another configuration (run.json "
                              "describes those of the steps from {} on); result.json lists the programs",
                              given_.step, since));
    const auto begins_with_others_step = begins_after_ == 0 && how.at("load").at("keep_step").get<bool>();
    if (begins_after_ + 1 < since && !begins_with_others_step)
      return fail(errc::mismatch,
                  fmt::format("the checkpoint after step {}, from which this program went on, is not kept, and steps "
                              "before it are those of another: repeat steps after a checkpoint that is "
                              "(checkpoint.num_to_keep, charlm: --keep)",
                              since - 1));
    if (begins_after_ == 0)
      return {};
    auto code = std::error_code{};
    checkpoint_ = fs::canonical(given_.run / "checkpoints" / serialization::checkpoint_name({begins_after_}), code);
    if (code)
      return fail(errc::io_error,
                  fmt::format("cannot find the checkpoint after step {}: {}", begins_after_, code.message()));
    return {};
  }

  expected<int> start(const fs::path& scratch) {
    if (begins_after_ > 0)
      fmt::print("begins from the checkpoint after step {}\n", begins_after_);
    else
      fmt::print("begins from the start: no checkpoint before step {} is kept\n", given_.step);
    std::fflush(stdout);
    const auto file = scratch / "replay.json";
    auto out = std::ofstream{file};
    out << nlohmann::json{{"run", run_},
                          {"storage", runs_in(scratch).string()},
                          {"checkpoint", checkpoint_.string()},
                          {"until", given_.until},
                          {"workers", given_.debug ? 0 : given_.workers}};
    if (!out.flush())
      return fail(errc::io_error, "cannot write " + file.string());
    process_to_run what{{given_.program.string()}, run_.at("replay").at("directory").get<std::string>(), file.string()};
    if (given_.debug)
      what.argv.insert(what.argv.begin(), {"gdb", "-q", "--args"});
    return run_to_end(what);
  }

  /// Everything that was repeated counts, also what lies before the steps that were named.
  [[nodiscard]] int judge(const digest_ledger& recorded, const digest_ledger& repeated) const {
    const auto compared = compare(recorded, repeated, begins_after_ + 1, given_.until);
    if (compared.differs) {
      fmt::print("step {} differs from what the run has recorded, in {}\n", *compared.differs,
                 fmt::join(compared.what, "; "));
      return exit_found;
    }
    if (compared.compared == 0 || compared.last < given_.until) {
      fmt::print(stderr, "troupe replay: the program ended after step {}, before step {}\n", compared.last,
                 given_.until);
      return exit_trouble;
    }
    fmt::print("steps {} to {} repeated: all digests equal{}{}\n", compared.first, compared.last,
               compared.compared == compared.last - compared.first + 1
                   ? ""
                   : fmt::format(" ({} of them are in the ledger)", compared.compared),
               lost_parts(compared));
    return exit_good;
  }

  replay_arguments given_;
  nlohmann::json run_;
  /// 0: at the beginning.
  std::uint64_t begins_after_ = 0;
  /// The one that it begins with; empty at the beginning.
  fs::path checkpoint_;
};

} // namespace

int replay(const replay_arguments& given) {
  const auto code = report_trouble("replay", replayer{given}.run());
  return ended_by_signal == 0 ? code : 128 + ended_by_signal;
}

} // namespace troupe::tool
