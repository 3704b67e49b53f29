#include "programs/program_finder.hpp"

#include "process/own_environment.hpp"

#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Opens what a driver names. With a build id, `one_program` prefers the running program.
struct source_opener {
  const std::string& named;
  const std::string& build_id;

  expected<program_file> operator()(const program_directory& source) const {
    const auto name = std::filesystem::path{named}.filename();
    if (name.empty() || name == "." || name == "..")
      return fail(errc::program_mismatch, fmt::format("'{}' does not name a program in {} on host {}", named,
                                                      source.path.string(), local_host_name()));
    return open_at(source.path / name);
  }

  expected<program_file> operator()(drivers_path) const {
    if (!std::filesystem::path{named}.is_absolute())
      return fail(errc::invalid_argument,
                  fmt::format("'{}' is no absolute path, which host {} needs", named, local_host_name()));
    return open_at(named);
  }

  expected<program_file> operator()(sent_programs) const {
    return fail(errc::not_found,
                fmt::format("host {} has only programs that were sent to it, and not {}", local_host_name(), named));
  }

  expected<program_file> operator()(const one_program& source) const {
    if (named != source.path)
      return fail(errc::program_mismatch,
                  fmt::format("the node inside a driver starts {}, and not {}", source.path, named));
    auto own = program_file::own();
    return own && own->identity().build_id == build_id ? std::move(own) : open_at(source.path);
  }
};

const auto any_build = std::string{};

error other_build(const program_identity& here, const std::string& wanted) {
  return {errc::program_mismatch,
          fmt::format("{} on host {} is build {}, but the driver is build {}: install the same build on all hosts, or "
                      "start caf-node with --accept-programs",
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

expected<program_file> program_finder::find(const std::string& named, const std::string& build_id,
                                            const variables& more) const {
  auto program = std::visit(source_opener{named, build_id}, source_);
  const auto is_wanted = [&] { return program && program->identity().build_id == build_id; };
  if (!is_wanted() && cache_)
    if (auto sent = cache_->find(build_id))
      program = std::move(sent);
  if (!program)
    return fail(program.error().code,
                program.error().message +
                    (std::holds_alternative<one_program>(source_)
                         ? ""
                         : ": install the driver's program there (caf-node --program-dir), or start caf-node with "
                           "--accept-programs"));
  // The driver's own program runs already.
  if (!std::holds_alternative<one_program>(source_))
    TROUPE_TRY(check_host(*program, more));
  if (!is_wanted())
    return fail(other_build(program->identity(), build_id));
  return program;
}

expected<program_file> program_finder::find_any_build(const std::string& named, const variables& more) const {
  return check(std::visit(source_opener{named, any_build}, source_), more);
}

expected<program_file> program_finder::check(expected<program_file> program, const variables& more) {
  if (program)
    TROUPE_TRY(check_host(*program, more));
  return program;
}

} // namespace troupe::runtime
