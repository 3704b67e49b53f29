#include "run/over_ssh.hpp"

#include "checkpoint/commands.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <sstream>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace troupe::tool {

namespace {

/// ssh's own failures have this code.
constexpr int ssh_failure = 255;
constexpr int command_not_found = 127;

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> result;
  auto in = std::istringstream{text};
  for (std::string word; in >> word;)
    result.push_back(word);
  return result;
}

/// Ctrl-C is for the program there: ssh passes it on, and this one waits for its end.
class interrupts_ignored {
 public:
  interrupts_ignored() : before_(std::signal(SIGINT, SIG_IGN)) {}
  interrupts_ignored(const interrupts_ignored&) = delete;
  interrupts_ignored& operator=(const interrupts_ignored&) = delete;
  ~interrupts_ignored() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

/// The exit code of a command, found in PATH.
expected<int> run(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const auto& each : command)
    argv.push_back(const_cast<char*>(each.c_str()));
  argv.push_back(nullptr);
  posix_spawnattr_t how;
  ::posix_spawnattr_init(&how);
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGINT);
  ::posix_spawnattr_setsigdefault(&how, &usual);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF);
  const auto ignored = interrupts_ignored{};
  pid_t pid = 0;
  const auto code = ::posix_spawnp(&pid, argv.front(), nullptr, &how, argv.data(), environ);
  ::posix_spawnattr_destroy(&how);
  if (code != 0)
    return fail(errc::not_found, fmt::format("{} cannot be started: {}", command.front(), std::strerror(code)));
  int status = 0;
  for (pid_t ended = 0; ended != pid;) {
    ended = ::waitpid(pid, &status, 0);
    if (ended < 0 && errno != EINTR)
      return fail(errc::io_error, fmt::format("it is unknown how {} ended: {}", command.front(), std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string>& arguments_of_program() {
  static std::vector<std::string> result;
  return result;
}

} // namespace

std::string shell_quoted(const std::string& word) {
  std::string result = "'";
  for (const auto each : word)
    result += each == '\'' ? std::string{"'\\''"} : std::string{each};
  return result + "'";
}

std::vector<std::string> without_host(const std::vector<std::string>& arguments) {
  constexpr std::string_view option = "--host";
  std::vector<std::string> result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") {
      result.insert(result.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    if (arguments[i] == option)
      ++i;
    else if (!arguments[i].starts_with(std::string{option} + "="))
      result.push_back(arguments[i]);
  }
  return result;
}

int execute_over_ssh(const std::string& host, const std::vector<std::string>& arguments) {
  if (host.starts_with('-')) {
    fmt::print(stderr, "troupe: --host {}: that is an option of ssh and no host\n", host);
    return exit_trouble;
  }
  const auto* own = std::getenv("TROUPE_SSH");
  auto command = words_of(own == nullptr || *own == '\0' ? "ssh" : own);
  // So that Ctrl-C gets there, and the width of this terminal.
  if (own == nullptr && ::isatty(STDOUT_FILENO) != 0)
    command.emplace_back("-t");
  command.push_back(host);
  std::string there = "troupe";
  for (const auto& each : without_host(arguments))
    there += " " + shell_quoted(each);
  command.push_back(there);
  std::fflush(stdout);
  const auto code = run(command);
  if (!code) {
    fmt::print(stderr, "troupe: --host {}: {}\n", host, code.error().message);
    return exit_trouble;
  }
  if (*code == ssh_failure || *code == command_not_found) {
    fmt::print(stderr, "troupe: --host {}: {}\n", host,
               *code == ssh_failure ? "it cannot be reached over ssh, as above" : "it has no troupe in its PATH");
    return exit_trouble;
  }
  return *code;
}

void keep_arguments(int argc, char** argv) {
  arguments_of_program().assign(argv + 1, argv + argc);
}

const std::vector<std::string>& kept_arguments() {
  return arguments_of_program();
}

} // namespace troupe::tool
