#include "command.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace troupe::tool {

namespace {

class interrupts_ignored {
 public:
  interrupts_ignored() : before_(std::signal(SIGINT, SIG_IGN)) {}
  interrupts_ignored(const interrupts_ignored&) = delete;
  interrupts_ignored& operator=(const interrupts_ignored&) = delete;
  ~interrupts_ignored() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

/// Where a child's streams lead, and which signals it takes.
class spawn_plan {
 public:
  spawn_plan() {
    ::posix_spawnattr_init(&how_);
    ::posix_spawn_file_actions_init(&files_);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGINT);
    ::posix_spawnattr_setsigdefault(&how_, &usual);
    ::posix_spawnattr_setflags(&how_, POSIX_SPAWN_SETSIGDEF);
  }
  spawn_plan(const spawn_plan&) = delete;
  spawn_plan& operator=(const spawn_plan&) = delete;
  ~spawn_plan() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&how_);
  }

  void read_from(const std::filesystem::path& file) {
    ::posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, file.c_str(), O_RDONLY, 0);
  }
  void write_to(int descriptor) { ::posix_spawn_file_actions_adddup2(&files_, descriptor, STDOUT_FILENO); }

  /// Returns its process id, or 0 and sets errno.
  [[nodiscard]] pid_t start(const std::vector<std::string>& words) const {
    std::vector<char*> argv;
    for (const auto& each : words)
      argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    pid_t pid = 0;
    errno = ::posix_spawnp(&pid, argv.front(), &files_, &how_, argv.data(), environ);
    return errno == 0 ? pid : 0;
  }

 private:
  posix_spawnattr_t how_{};
  posix_spawn_file_actions_t files_{};
};

std::string read_all(int descriptor) {
  std::string result;
  std::array<char, 4096> piece{};
  for (;;) {
    const auto size = ::read(descriptor, piece.data(), piece.size());
    if (size > 0)
      result.append(piece.data(), static_cast<std::size_t>(size));
    else if (size == 0 || errno != EINTR)
      break;
  }
  if (result.ends_with('\n'))
    result.pop_back();
  return result;
}

} // namespace

expected<finished_command> run_command(const std::vector<std::string>& words, const command_streams& streams) {
  auto plan = spawn_plan{};
  if (!streams.input.empty())
    plan.read_from(streams.input);
  std::array<int, 2> ends{-1, -1};
  if (streams.captures) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      return fail(system_error("cannot make a pipe"));
    plan.write_to(ends[1]);
  }
  const auto ignored = interrupts_ignored{};
  const auto pid = plan.start(words);
  const auto why = errno;
  if (streams.captures)
    ::close(ends[1]);
  finished_command result;
  if (streams.captures) {
    if (pid != 0)
      result.out = read_all(ends[0]);
    ::close(ends[0]);
  }
  if (pid == 0)
    return fail(errc::not_found, fmt::format("{} cannot be started: {}", words.front(), std::strerror(why)));
  int status = 0;
  for (pid_t ended = 0; ended != pid;) {
    ended = ::waitpid(pid, &status, 0);
    if (ended < 0 && errno != EINTR)
      return fail(errc::io_error, fmt::format("it is unknown how {} ended: {}", words.front(), std::strerror(errno)));
  }
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

} // namespace troupe::tool
