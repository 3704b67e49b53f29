#include "node/program_finder.hpp"

#include "process/own_environment.hpp"

#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <grp.h>
#include <pwd.h>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

using variables = std::map<std::string, std::string>;

expected<program_file> open_at(const std::filesystem::path& path) {
  auto program = program_file::open(path.string());
  if (!program)
    return fail(program.error().code, fmt::format("{} (on host {})", program.error().message, local_host_name()));
  return program;
}

/// Whether this user alone is in the group, which has the user's name: each user of Debian has one.
bool is_private_group(gid_t group) {
  std::array<char, 4096> user_text{};
  std::array<char, 16384> group_text{};
  passwd user_entry{};
  ::group group_entry{};
  passwd* user = nullptr;
  ::group* found = nullptr;
  if (::getpwuid_r(::geteuid(), &user_entry, user_text.data(), user_text.size(), &user) != 0 || user == nullptr ||
      ::getgrgid_r(group, &group_entry, group_text.data(), group_text.size(), &found) != 0 || found == nullptr)
    return false;
  const auto has_others = found->gr_mem[0] != nullptr && std::string_view{found->gr_mem[0]} != user->pw_name;
  return group == user->pw_gid && std::string_view{found->gr_name} == user->pw_name && !has_others;
}

/// Whether a user other than this process's and root could change the file or directory.
bool is_open_to_others(const struct stat& status) {
  const auto is_foreign_owner = status.st_uid != ::geteuid() && status.st_uid != 0;
  const auto is_foreign_group =
      (status.st_mode & S_IWGRP) != 0 && status.st_gid != 0 && !is_private_group(status.st_gid);
  return is_foreign_owner || is_foreign_group || (status.st_mode & S_IWOTH) != 0;
}

/// Opens what a driver names. `one_program` prefers the running program.
struct source_opener {
  const std::string& named;
  const std::string& build_id;

  expected<program_file> operator()(const program_directory& source) const {
    const auto name = std::filesystem::path{named}.filename();
    if (name.empty() || name == "." || name == "..")
      return fail(errc::program_mismatch, fmt::format("'{}' does not name a program in {} on host {}", named,
                                                      source.path.string(), local_host_name()));
    // It may have changed since the node began.
    if (const auto bounds = bounding_directory(source.path); !bounds)
      return fail(errc::program_mismatch, fmt::format("host {}: {}", local_host_name(), bounds.error().message));
    TROUPE_TRY(auto program, open_at(source.path / name));
    static const auto node = own_program();
    if (node && node->build_id == program.identity().build_id)
      return fail(errc::program_mismatch,
                  fmt::format("{} on host {} is the node's own program, which drivers do not start",
                              program.identity().path, local_host_name()));
    struct stat status {};
    if (::fstat(program.fd(), &status) != 0 || is_open_to_others(status))
      return fail(errc::program_mismatch,
                  fmt::format("another user could change {} on host {}, so that it is not started: "
                              "chown and chmod go-w it",
                              program.identity().path, local_host_name()));
    return program;
  }

  expected<program_file> operator()(drivers_path) const {
    if (!std::filesystem::path{named}.is_absolute())
      return fail(errc::invalid_argument,
                  fmt::format("'{}' is no absolute path, which host {} needs", named, local_host_name()));
    return open_at(named);
  }

  expected<program_file> operator()(const one_program& source) const {
    if (named != source.path)
      return fail(errc::program_mismatch,
                  fmt::format("the node inside a driver starts {}, and not {}", source.path, named));
    auto own = program_file::own();
    return own && own->identity().build_id == build_id ? std::move(own) : open_at(source.path);
  }
};

error other_build(const program_identity& here, const std::string& wanted) {
  return {errc::program_mismatch,
          fmt::format("{} on host {} is build {}, but the driver is build {}: install the same build on all hosts",
                      here.path, local_host_name(), here.build_id, wanted)};
}

/// Fails with `errc::program_mismatch`, and names the host and all libraries that it lacks.
expected<void> check_host(const program_file& program, const variables& more) {
  const auto& path = program.identity().path;
  if (auto fits = check_processor(program.fd(), path); !fits)
    return fail(fits.error().code, fmt::format("host {}: {}", local_host_name(), fits.error().message));
  const auto missing = missing_libraries(program.fd(), environment_with(more));
  if (!missing.empty())
    return fail(errc::program_mismatch,
                fmt::format("host {} lacks shared libraries of {}: {}; install the packages that contain them there",
                            local_host_name(), path, fmt::join(missing, ", ")));
  return {};
}

} // namespace

expected<program_directory> bounding_directory(std::filesystem::path path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return fail(errc::invalid_argument, fmt::format("--program-dir {}: there is no such directory", path.string()));
  if (is_open_to_others(status))
    return fail(
        errc::invalid_argument,
        fmt::format("--program-dir {}: another user could put programs there, which drivers could start: chown and "
                    "chmod go-w it",
                    path.string()));
  constexpr auto node_program = "caf-node";
  auto code = std::error_code{};
  if (std::filesystem::exists(path / node_program, code))
    return fail(
        errc::invalid_argument,
        fmt::format("--program-dir {}: it has {}, which a driver could start with a directory of its own choice: "
                    "give the programs of drivers a directory of their own (links to them will do)",
                    path.string(), node_program));
  return program_directory{std::move(path)};
}

expected<program_file> program_finder::find(const std::string& named, const std::string& build_id,
                                            const variables& more) const {
  auto program = std::visit(source_opener{named, build_id}, source_);
  if (!program)
    return fail(program.error().code,
                program.error().message + (std::holds_alternative<one_program>(source_)
                                               ? ""
                                               : ": install the driver's program there (caf-node --program-dir)"));
  // The driver's own program runs already.
  if (!std::holds_alternative<one_program>(source_))
    TROUPE_TRY(check_host(*program, more));
  if (program->identity().build_id != build_id)
    return fail(other_build(program->identity(), build_id));
  return program;
}

} // namespace troupe::runtime
