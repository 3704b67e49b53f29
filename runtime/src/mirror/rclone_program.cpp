#include "mirror/rclone_program.hpp"

#include "process/own_environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// Lines of an error.
constexpr std::ptrdiff_t most_problem_lines = 4;

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

/// Without the date and time in front: "2026/11/25 19:11:21 ERROR : ...".
std::string without_time(std::string_view line) {
  constexpr auto stamp = std::string_view{"2026/11/25 19:11:21 "}.size();
  if (line.size() > stamp && line[4] == '/' && line[13] == ':')
    line.remove_prefix(stamp);
  return std::string{line};
}

} // namespace

expected<rclone_program> rclone_program::find(const std::string& name) {
  auto path = find_in_path(name);
  auto program = path ? program_file::open(*path) : tl::unexpected<error>{path.error()};
  if (!program)
    return fail(program.error().code,
                fmt::format("the mirror needs the program rclone: {}; install it (Debian: apt-get install rclone), or "
                            "name it (checkpoint.mirror.rclone)",
                            program.error().message));
  TROUPE_TRY(auto runner, program_runner::make());
  return rclone_program{std::move(*program), std::move(runner)};
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
  spec.env = environment_with({});
  TROUPE_TRY(auto ran, runner_.run(spec, stop));
  if (!ran.how.exit_code)
    return fail(errc::io_error, "rclone " + ran.how.describe());
  std::erase_if(ran.err, [](const std::string& line) { return line.find("NOTICE:") != std::string::npos; });
  if (std::ssize(ran.err) > most_problem_lines)
    ran.err.erase(ran.err.begin(), ran.err.end() - most_problem_lines);
  std::ranges::transform(ran.err, ran.err.begin(), without_time);
  return rclone_outcome{*ran.how.exit_code, std::move(ran.out), fmt::format("{}", fmt::join(ran.err, "; "))};
}

} // namespace troupe::runtime
