#include "dashboard/png.hpp"

#include <troupe/collectives/unique_fd.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <spawn.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace troupe::tool {

namespace {

/// A file in memory with this content, at its beginning.
expected<collectives::unique_fd> file_in_memory(std::string_view content) {
  collectives::unique_fd result{::memfd_create("troupe-picture", MFD_CLOEXEC)};
  while (result && !content.empty()) {
    const auto written = ::write(result.get(), content.data(), content.size());
    if (written < 0 && errno != EINTR)
      return fail(system_error("a picture in memory"));
    content.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
  if (!result || ::lseek(result.get(), 0, SEEK_SET) != 0)
    return fail(system_error("a picture in memory"));
  return result;
}

} // namespace

expected<void> write_png(const std::string& svg, const std::filesystem::path& file) {
  TROUPE_TRY(const auto input, file_in_memory(svg));
  std::vector<std::string> words{"rsvg-convert", "--format", "png", "--zoom", "2", "--output", file.string()};
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  pid_t child = 0;
  const auto problem = ::posix_spawnp(&child, "rsvg-convert", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (problem == ENOENT)
    return fail(errc::not_found, "PNG needs rsvg-convert, which is not installed (apt install librsvg2-bin); --svg "
                                 "needs nothing");
  if (problem != 0)
    return fail(errc::io_error,
                fmt::format("rsvg-convert cannot be started: {}", std::generic_category().message(problem)));
  auto status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(errc::io_error, fmt::format("rsvg-convert has not written {}", file.string()));
  return {};
}

} // namespace troupe::tool
