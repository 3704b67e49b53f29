#include "shell.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

namespace troupe::chaos {

std::optional<std::string> complaint_of(const std::vector<std::string>& argv) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return fmt::format("cannot make a pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  std::vector<char*> words;
  for (const auto& word : argv)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  auto pid = pid_t{0};
  auto bad = ::posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  std::string output;
  if (bad == 0) {
    std::array<char, 512> buffer{};
    for (ssize_t n = 0; (n = ::read(pipe[0], buffer.data(), buffer.size())) > 0;)
      output.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(pipe[0]);
  if (bad != 0)
    return fmt::format("{}: {}", argv.at(0), std::strerror(bad));
  auto status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return std::nullopt;
  while (!output.empty() && output.back() == '\n')
    output.pop_back();
  return fmt::format("{}: {}", argv.at(0), output.empty() ? "failed" : output);
}

std::vector<std::string> split_command(const std::string& text) {
  std::vector<std::string> result;
  wordexp_t words{};
  if (::wordexp(text.c_str(), &words, WRDE_NOCMD) != 0)
    return result;
  result.assign(words.we_wordv, words.we_wordv + words.we_wordc);
  ::wordfree(&words);
  return result;
}

} // namespace troupe::chaos
