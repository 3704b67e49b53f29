#include "locate.hpp"

#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

bool is_checkpoint(const fs::path& path) {
  auto ignored = std::error_code{};
  return serialization::parse_checkpoint_name(path.filename().string()).has_value() ||
         fs::exists(path / serialization::manifest_file_name, ignored);
}

expected<std::vector<fs::path>> checkpoints_in(const fs::path& directory) {
  auto found = std::vector<std::pair<step_id, fs::path>>{};
  auto code = std::error_code{};
  for (auto entries = fs::directory_iterator{directory, code}; !code && entries != fs::directory_iterator{};
       entries.increment(code)) {
    auto ignored = std::error_code{};
    auto step = serialization::parse_checkpoint_name(entries->path().filename().string());
    if (step && entries->is_directory(ignored))
      found.emplace_back(*step, entries->path());
  }
  if (code)
    return fail(errc::io_error, fmt::format("cannot list {}: {}", directory.string(), code.message()));
  std::ranges::sort(found);
  auto result = std::vector<fs::path>{};
  for (auto& [step, path] : found)
    result.push_back(std::move(path));
  return result;
}

} // namespace

expected<place> locate(const fs::path& given) {
  // "run/" means "run".
  auto path = given.has_filename() ? given : given.parent_path();
  auto code = std::error_code{};
  if (!fs::is_directory(path, code))
    return fail(errc::not_found,
                fmt::format("{} {}: give a run's directory, its checkpoints directory, or a "
                            "checkpoint's directory",
                            path.string(), fs::exists(path, code) ? "is not a directory" : "does not exist"));
  if (is_checkpoint(path))
    return place{{path}, true, path.parent_path()};
  auto is_run = fs::is_directory(path / "checkpoints", code);
  auto directory = is_run ? path / "checkpoints" : path;
  auto found = checkpoints_in(directory);
  if (!found)
    return fail(std::move(found.error()));
  if (found->empty() && !is_run && path.filename() != "checkpoints")
    return fail(errc::not_found, fmt::format("{} contains neither checkpoints nor a run: give a run's directory, its "
                                             "checkpoints directory, or a checkpoint's directory",
                                             path.string()));
  return place{std::move(*found), false, directory};
}

expected<fs::path> locate_one(const fs::path& path, std::optional<std::uint64_t> step) {
  auto where = locate(path);
  if (!where)
    return fail(std::move(where.error()));
  if (where->checkpoints.empty())
    return fail(errc::not_found, fmt::format("there is no checkpoint in {}", where->directory.string()));
  if (!step || where->single)
    return where->checkpoints.back();
  auto name = serialization::checkpoint_name({*step});
  auto found = std::ranges::find(where->checkpoints, name, [](const fs::path& x) { return x.filename().string(); });
  if (found != where->checkpoints.end())
    return *found;
  return fail(errc::not_found, fmt::format("there is no {} in {}; the newest is {}", name, where->directory.string(),
                                           where->checkpoints.back().filename().string()));
}

} // namespace troupe::tool
