#include "run/over_ssh.hpp"

#include "checkpoint/commands.hpp"

#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <unistd.h>

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

std::vector<std::string>& arguments_of_program() {
  static std::vector<std::string> result;
  return result;
}

expected<std::vector<std::string>> ssh_command(const std::string& host, bool has_terminal) {
  if (host.starts_with('-'))
    return fail(errc::invalid_argument, fmt::format("--host {}: that is an option of ssh and no host", host));
  const auto* own = std::getenv("TROUPE_SSH");
  auto result = words_of(own == nullptr || *own == '\0' ? "ssh" : own);
  // So that Ctrl-C gets there, and the width of this terminal.
  if (own == nullptr && has_terminal)
    result.emplace_back("-t");
  result.push_back(host);
  return result;
}

} // namespace

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

expected<finished_command> run_over_ssh(const std::string& host, const std::string& there, command_streams streams) {
  // ssh would read what a script around this reads.
  if (streams.input.empty() && ::isatty(STDIN_FILENO) == 0)
    streams.input = "/dev/null";
  TROUPE_TRY(auto command,
             ssh_command(host, !streams.captures && streams.input.empty() && ::isatty(STDOUT_FILENO) != 0));
  command.push_back(there);
  std::fflush(stdout);
  auto done = run_command(command, streams);
  if (!done)
    return fail(done.error().code, fmt::format("--host {}: {}", host, done.error().message));
  if (done->code == ssh_failure || done->code == command_not_found)
    return fail(errc::unreachable, fmt::format("--host {}: {}", host,
                                               done->code == ssh_failure ? "it cannot be reached over ssh, as above"
                                                                         : "it has no troupe in its PATH"));
  return done;
}

int execute_over_ssh(const std::string& host, const std::vector<std::string>& arguments) {
  std::string there = "troupe";
  for (const auto& each : arguments)
    there += " " + shell_quoted(each);
  const auto done = run_over_ssh(host, there, {});
  if (done)
    return done->code;
  fmt::print(stderr, "troupe: {}\n", done.error().message);
  return exit_trouble;
}

void keep_arguments(int argc, char** argv) {
  arguments_of_program().assign(argv + 1, argv + argc);
}

const std::vector<std::string>& kept_arguments() {
  return arguments_of_program();
}

} // namespace troupe::tool
