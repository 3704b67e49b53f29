#include "mirror/rclone_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// More than a directory of checkpoints has files.
constexpr std::size_t most_lines = 1'000'000;

/// Lines of an error.
constexpr std::size_t most_problem_lines = 4;

/// How long it may take to end when it is asked to.
constexpr auto end_after = std::chrono::seconds{2};

/// Whoever repeats a failed call is the mirror's queue. Nobody is there to enter a password.
const std::vector<std::string>& usual_arguments() {
  static const auto result =
      std::vector<std::string>{"--retries=1",   "--low-level-retries=3", "--contimeout=20s",   "--timeout=60s",
                               "--stats=0",     "--ask-password=false",  "--log-level=NOTICE", "--use-json-log=false",
                               "--transfers=4", "--checkers=4",          "--buffer-size=4M",   "--log-file="};
  return result;
}

expected<std::string> find_in_path(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return name;
  const auto* path = std::getenv("PATH");
  auto directories = std::istringstream{path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path};
  for (std::string each; std::getline(directories, each, ':');)
    if (auto file = (std::filesystem::path{each.empty() ? "." : each} / name).string();
        ::access(file.c_str(), X_OK) == 0)
      return file;
  return fail(errc::not_found, fmt::format("{} is not in PATH", name));
}

std::vector<std::string> own_environment() {
  std::vector<std::string> result;
  for (auto** each = environ; *each != nullptr; ++each)
    result.emplace_back(*each);
  return result;
}

/// Without the date and time in front: "2026/11/25 19:11:21 ERROR : ...".
std::string without_time(std::string_view line) {
  constexpr auto stamp = std::string_view{"2026/11/25 19:11:21 "}.size();
  if (line.size() > stamp && line[4] == '/' && line[13] == ':')
    line.remove_prefix(stamp);
  return std::string{line};
}

} // namespace

/// The state of the call under way, which the supervisor's thread fills.
class rclone_program::children {
 public:
  static expected<std::unique_ptr<children>> make() {
    auto result = std::make_unique<children>();
    auto* self = result.get();
    auto supervisor = process_supervisor::make(
        {[self](pid_t, output_stream stream, std::string_view line) { self->on_line(stream, line); },
         [self](const exit_report& report) { self->on_exit(report); }});
    if (!supervisor)
      return fail(std::move(supervisor.error()));
    result->supervisor_.emplace(std::move(*supervisor));
    return result;
  }

  expected<rclone_outcome> run(const process_spec& spec, const std::stop_token& stop) {
    {
      auto lock = std::lock_guard{mutex_};
      outcome_ = {};
      problem_.clear();
      exit_.reset();
    }
    TROUPE_TRY(const auto pid, supervisor_->start(spec));
    auto lock = std::unique_lock{mutex_};
    if (!changed_.wait(lock, stop, [this] { return exit_.has_value(); })) {
      lock.unlock();
      supervisor_->kill(pid, SIGTERM);
      lock.lock();
      if (!changed_.wait_for(lock, end_after, [this] { return exit_.has_value(); })) {
        lock.unlock();
        supervisor_->kill(pid, SIGKILL);
        lock.lock();
        changed_.wait(lock, [this] { return exit_.has_value(); });
      }
      return fail(errc::aborted, "rclone was ended");
    }
    if (!exit_->exit_code)
      return fail(errc::io_error, fmt::format("rclone {}", exit_->describe()));
    outcome_.exit_code = *exit_->exit_code;
    outcome_.problem = fmt::format("{}", fmt::join(problem_, "; "));
    return std::move(outcome_);
  }

 private:
  void on_line(output_stream stream, std::string_view line) {
    auto lock = std::lock_guard{mutex_};
    if (stream == output_stream::out) {
      if (outcome_.out.size() < most_lines)
        outcome_.out.emplace_back(line);
      return;
    }
    if (line.find("NOTICE:") == std::string_view::npos)
      problem_.push_back(without_time(line));
    if (problem_.size() > most_problem_lines)
      problem_.pop_front();
  }

  void on_exit(const exit_report& report) {
    {
      auto lock = std::lock_guard{mutex_};
      exit_ = report;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  rclone_outcome outcome_;
  std::deque<std::string> problem_;
  std::optional<exit_report> exit_;
  /// Last, so that its thread ends before the rest.
  std::optional<process_supervisor> supervisor_;
};

rclone_program::rclone_program(program_file program, std::unique_ptr<children> running)
    : program_(std::move(program)), children_(std::move(running)) {}
rclone_program::rclone_program(rclone_program&&) noexcept = default;
rclone_program::~rclone_program() = default;

expected<rclone_program> rclone_program::find(const std::string& name) {
  auto path = find_in_path(name);
  auto program = path ? program_file::open(*path) : tl::unexpected<error>{path.error()};
  if (!program)
    return fail(program.error().code,
                fmt::format("the mirror needs the program rclone: {}; install it (Debian: apt-get install rclone), or "
                            "name it (checkpoint.mirror.rclone)",
                            program.error().message));
  TROUPE_TRY(auto running, children::make());
  return rclone_program{std::move(*program), std::move(running)};
}

expected<rclone_outcome> rclone_program::call(std::vector<std::string> arguments, const std::stop_token& stop) {
  if (stop.stop_requested())
    return fail(errc::aborted, "rclone was not started");
  process_spec spec;
  spec.program_fd = program_.fd();
  spec.program = program_.identity().path;
  spec.argv = {"rclone"};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.argv.insert(spec.argv.end(), usual_arguments().begin(), usual_arguments().end());
  spec.env = own_environment();
  return children_->run(spec, stop);
}

} // namespace troupe::runtime
