#include "mirror/rclone_mirror.hpp"

#include "mirror/file_copy.hpp"

#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/copy.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using serialization::manifest_file_name;

namespace {

/// A path that rclone takes for one of this machine, whatever colons it has.
std::string local(const fs::path& path) {
  auto ignored = std::error_code{};
  return fs::absolute(path, ignored).lexically_normal().string();
}

/// A pattern of rclone's that stands for the manifest at the top of a directory.
const auto manifest_pattern = std::string{"/"} + std::string{manifest_file_name};

} // namespace

std::string rclone_mirror::at(const std::string& name) const {
  return join_mirror_place(remote_, name);
}

std::string rclone_mirror::at(step_id step) const {
  return at("checkpoints/" + serialization::checkpoint_name(step));
}

expected<rclone_outcome> rclone_mirror::call(std::string_view doing, std::vector<std::string> arguments,
                                             const std::stop_token& stop) {
  TROUPE_TRY(auto outcome, rclone_.call(std::move(arguments), stop));
  if (!outcome.succeeded())
    return fail(outcome.found_nothing() ? errc::not_found : errc::io_error,
                fmt::format("{} failed: rclone ended with code {}: {} (try it by hand: rclone lsf {})", doing,
                            outcome.exit_code, outcome.problem, remote_));
  return outcome;
}

expected<actors::mirror_content> rclone_mirror::list(const std::stop_token& stop) {
  auto found = call(fmt::format("listing {}", place_),
                    {"lsf", "--recursive", "--files-only", "--max-depth=2", at("checkpoints")}, stop);
  if (!found && found.error().code == errc::not_found)
    return actors::mirror_content{};
  if (!found)
    return fail(std::move(found.error()));
  // Whether each has a manifest.
  std::map<step_id, bool> steps;
  for (const auto& line : found->out) {
    const auto slash = line.find('/');
    if (const auto step = serialization::parse_checkpoint_name(line.substr(0, slash)); step && slash != line.npos)
      steps[*step] |= std::string_view{line}.substr(slash + 1) == manifest_file_name;
  }
  actors::mirror_content result;
  for (const auto& [step, is_complete] : steps)
    (is_complete ? result.complete : result.incomplete).push_back(step);
  return result;
}

expected<bool> rclone_mirror::has_hashes(const std::stop_token& stop) {
  if (!has_hashes_) {
    TROUPE_TRY(const auto described, call("asking for its features", {"backend", "features", remote_}, stop));
    const auto features = nlohmann::json::parse(fmt::format("{}", fmt::join(described.out, "\n")), nullptr, false);
    has_hashes_ = features.is_object() && features.contains("Hashes") && features["Hashes"].is_array() &&
                  !features["Hashes"].empty();
  }
  return *has_hashes_;
}

expected<rclone_outcome> rclone_mirror::compare(const std::string& from, const std::string& to,
                                                const std::vector<std::string>& filter, const std::stop_token& stop) {
  TROUPE_TRY(const auto by_hash, has_hashes(stop));
  auto arguments = std::vector<std::string>{"check", "--one-way", from, to};
  if (!by_hash)
    arguments.emplace_back("--download");
  arguments.insert(arguments.end(), filter.begin(), filter.end());
  return rclone_.call(std::move(arguments), stop);
}

expected<void> rclone_mirror::copy_verified(const std::string& from, const std::string& to, files which,
                                            const std::stop_token& stop) {
  const auto filter = std::vector<std::string>{which == files::parts ? "--exclude" : "--include", manifest_pattern};
  auto copy = std::vector<std::string>{"copy", "--checksum", from, to};
  copy.insert(copy.end(), filter.begin(), filter.end());
  TROUPE_TRY(call(fmt::format("copying {} to {}", from, place_), std::move(copy), stop));
  TROUPE_TRY(const auto compared, compare(from, to, filter, stop));
  if (compared.succeeded())
    return {};
  // Else the next attempt would leave alone what looks the same.
  std::ignore = rclone_.call({"purge", to}, stop);
  return fail(errc::damaged, fmt::format("the copy of {} at {} differs from it: {}", from, place_, compared.problem));
}

expected<void> rclone_mirror::hide(step_id step, const std::stop_token& stop) {
  auto hidden = call(fmt::format("removing the manifest of {}", at(step)),
                     {"delete", at(step), "--include", manifest_pattern}, stop);
  if (!hidden && hidden.error().code != errc::not_found)
    return fail(std::move(hidden.error()));
  return {};
}

expected<void> rclone_mirror::upload(const fs::path& checkpoint, const std::stop_token& stop) {
  const auto step = serialization::parse_checkpoint_name(checkpoint.filename().string());
  if (!step)
    return fail(errc::invalid_argument, fmt::format("{} has not the name of a checkpoint", checkpoint.string()));
  const auto from = local(checkpoint);
  // rclone compares the copy with these bytes, not with their checksums.
  TROUPE_TRY(const auto source, serialization::checkpoint::open(checkpoint));
  TROUPE_TRY(source.verify(serialization::read_back::cached, stop));
  TROUPE_TRY(const auto there, list(stop));
  if (std::ranges::find(there.complete, *step) != there.complete.end()) {
    TROUPE_TRY(const auto compared, compare(from, at(*step), {}, stop));
    if (compared.succeeded())
      return {};
    // Its parts are about to change: it is none until they are all there.
    TROUPE_TRY(hide(*step, stop));
  }
  TROUPE_TRY(copy_verified(from, at(*step), files::parts, stop));
  return copy_verified(from, at(*step), files::manifest, stop);
}

expected<void> rclone_mirror::remove(step_id step, const std::stop_token& stop) {
  TROUPE_TRY(hide(step, stop));
  auto removed = call(fmt::format("removing {}", at(step)), {"purge", at(step)}, stop);
  if (!removed && removed.error().code != errc::not_found)
    return fail(std::move(removed.error()));
  return {};
}

expected<void> rclone_mirror::upload_files(const fs::path& root, const std::vector<std::string>& names,
                                           const std::stop_token& stop) {
  // rclone refuses what grows while it copies.
  const auto copies = root / ".mirrored";
  auto ignored = std::error_code{};
  fs::remove_all(copies, ignored);
  TROUPE_TRY(serialization::create_directories_durably(copies));
  const auto temporary = serialization::temporary_directory{copies};
  for (const auto& name : names) {
    auto copied = copy_file(root / name, copies / name, stop);
    if (!copied && copied.error().code != errc::not_found)
      return copied;
  }
  TROUPE_TRY(call(fmt::format("copying the run's files to {}", place_),
                  {"copy", "--ignore-times", local(copies), remote_}, stop));
  return {};
}

expected<void> rclone_mirror::fetch(step_id step, const fs::path& checkpoints_directory, const std::stop_token& stop) {
  const auto copy = serialization::copy_directory(checkpoints_directory, step);
  auto ignored = std::error_code{};
  fs::remove_all(copy, ignored);
  auto copied = call(fmt::format("fetching {}", at(step)), {"copy", at(step), local(copy)}, stop);
  if (!copied) {
    fs::remove_all(copy, ignored);
    return fail(std::move(copied.error()));
  }
  TROUPE_TRY(serialization::adopt_copy(checkpoints_directory, step, stop));
  return {};
}

expected<void> rclone_mirror::fetch_file(const std::string& name, const fs::path& to, const std::stop_token& stop) {
  auto temporary = to;
  temporary += ".fetched";
  auto ignored = std::error_code{};
  fs::remove(temporary, ignored);
  TROUPE_TRY(call(fmt::format("fetching {}", at(name)), {"copyto", at(name), local(temporary)}, stop));
  // Some storages report success for a file that does not exist.
  if (!fs::exists(temporary, ignored))
    return fail(errc::not_found, fmt::format("{} does not exist", at(name)));
  return serialization::local_files().rename(temporary, to, serialization::if_taken::replace);
}

expected<std::string> rclone_mirror::move_aside(const std::stop_token& stop) {
  auto found = call(fmt::format("listing {}", place_), {"lsf", "--max-depth=1", remote_}, stop);
  if (!found && found.error().code == errc::not_found)
    return std::string{};
  TROUPE_TRY(const auto content, std::move(found));
  if (content.out.empty())
    return std::string{};
  for (unsigned number = 1;; ++number) {
    auto taken = call(fmt::format("listing {}.{}", place_, number),
                      {"lsf", "--max-depth=1", fmt::format("{}.{}", remote_, number)}, stop);
    if (taken && !taken->out.empty())
      continue;
    if (!taken && taken.error().code != errc::not_found)
      return fail(std::move(taken.error()));
    TROUPE_TRY(call(fmt::format("renaming {} to {}.{}", place_, place_, number),
                    {"moveto", remote_, fmt::format("{}.{}", remote_, number)}, stop));
    return fmt::format("{}.{}", place_, number);
  }
}

} // namespace troupe::runtime
