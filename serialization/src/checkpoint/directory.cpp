#include <troupe/serialization/checkpoint/directory.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include "files/directory_scan.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <tuple>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view final_prefix = "step-";
constexpr std::string_view temporary_prefix = ".step-";
constexpr std::string_view temporary_suffix = ".tmp";
constexpr std::string_view removed_suffix = ".removed";
constexpr std::string_view unreadable_suffix = ".unreadable";

/// The paths of the directories in `directory`; empty if it does not exist.
expected<std::vector<fs::path>> directories_in(const fs::path& directory, file_system& files) {
  auto result = std::vector<fs::path>{};
  auto entries = files.list(directory);
  if (!entries && entries.error().code == errc::not_found)
    return result;
  if (!entries)
    return fail(std::move(entries.error()));
  for (const auto& entry : *entries)
    if (entry.kind == entry_kind::directory)
      result.push_back(directory / entry.name);
  return result;
}

bool is_alphanumeric(char x) {
  return (x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z');
}

bool is_abandoned_name(std::string_view name) {
  return name.starts_with(temporary_prefix) && (name.ends_with(temporary_suffix) || name.ends_with(removed_suffix));
}

error not_committed(const manifest& content, const std::string& why) {
  return {errc::damaged, fmt::format("the checkpoint of step {} is not committed: {}", content.step, why)};
}

expected<void> check_parts(const fs::path& directory, const manifest& content, file_system& files) {
  for (const auto& part : content.parts) {
    auto path = directory / part.name;
    auto opened = files.open(path);
    auto size = opened ? (*opened)->size_bytes() : tl::unexpected<error>{opened.error()};
    if (!size && (size.error().code == errc::not_found || size.error().code == errc::damaged))
      return fail(not_committed(content, size.error().message));
    if (!size)
      return fail(std::move(size.error()));
    if (*size != part.size_bytes)
      return fail(not_committed(
          content, fmt::format("{} has {} bytes, its writer reported {}", path.string(), *size, part.size_bytes)));
  }
  return {};
}

error step_exists(const fs::path& path) {
  return {errc::already_exists, fmt::format("{} exists; a checkpoint is never overwritten", path.string())};
}

/// The candidates for the retention decision; with metrics only if the policy uses them.
expected<std::vector<retention_candidate>> read_candidates(const std::vector<checkpoint_entry>& entries,
                                                           const retention_policy& policy, file_system& files) {
  auto result = std::vector<retention_candidate>{};
  for (const auto& entry : entries) {
    result.push_back({entry.step});
    if (policy.score_attribute.empty())
      continue;
    auto content = read_manifest(entry.path / manifest_file_name, files);
    if (!content && content.error().code != errc::damaged)
      return fail(content.error().code,
                  fmt::format("no checkpoint is removed, because the metrics of one cannot be read: {}",
                              content.error().message));
    if (content)
      result.back().metrics = std::move(content->metrics);
  }
  return result;
}

} // namespace

std::string checkpoint_name(step_id step) {
  return fmt::format("{}{:08}", final_prefix, step);
}

std::optional<step_id> parse_checkpoint_name(std::string_view name) {
  if (!name.starts_with(final_prefix))
    return std::nullopt;
  auto digits = name.substr(final_prefix.size());
  auto step = step_id{};
  auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step.value);
  if (code != std::errc{} || checkpoint_name(step) != name)
    return std::nullopt;
  return step;
}

std::string temporary_name(const attempt_name& which) {
  auto run = which.run.value;
  std::erase_if(run, [](char x) { return !is_alphanumeric(x); });
  return fmt::format(".{}.r{}.g{}.a{}{}", checkpoint_name(which.step), run, which.generation, which.attempt,
                     temporary_suffix);
}

std::optional<attempt_name> parse_temporary_name(std::string_view name) {
  auto rest = name;
  auto skip = [&rest](std::string_view prefix) {
    const auto is_there = rest.starts_with(prefix);
    rest.remove_prefix(is_there ? prefix.size() : 0);
    return is_there;
  };
  auto take = [&](std::string_view prefix, auto& number) {
    if (!skip(prefix))
      return false;
    auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return code == std::errc{};
  };
  auto result = attempt_name{};
  if (!take(temporary_prefix, result.step.value) || !skip(".r"))
    return std::nullopt;
  const auto end_of_run = std::ranges::find_if_not(rest, is_alphanumeric);
  result.run.value.assign(rest.begin(), end_of_run);
  rest.remove_prefix(result.run.value.size());
  if (!take(".g", result.generation.value) || !take(".a", result.attempt) || temporary_name(result) != name)
    return std::nullopt;
  return result;
}

bool is_removed_name(std::string_view name) {
  return name.starts_with(temporary_prefix) && name.ends_with(removed_suffix);
}

expected<void> remove_tree(const fs::path& path, file_system& files) {
  auto is_gone = [](const expected<void>& removed) { return removed || removed.error().code == errc::not_found; };
  auto at_once = files.remove(path);
  if (is_gone(at_once))
    return {};
  auto entries = files.list(path);
  if (!entries)
    return entries.error().code == errc::not_found ? at_once : fail(std::move(entries.error()));
  for (const auto& entry : *entries) {
    auto inside = path / entry.name;
    auto removed = entry.kind == entry_kind::directory ? remove_tree(inside, files) : files.remove(inside);
    if (!is_gone(removed))
      return removed;
  }
  auto removed = files.remove(path);
  return is_gone(removed) ? expected<void>{} : removed;
}

expected<void> remove_if_damaged(const fs::path& target, file_system& files) {
  TROUPE_TRY(auto taken, files.look_at(target));
  if (!taken)
    return {};
  auto stored = checkpoint::open(target, files);
  auto good = stored ? stored->verify() : tl::unexpected<error>{stored.error()};
  if (!good && good.error().code == errc::damaged)
    return remove_checkpoint(target, files);
  return fail(step_exists(target));
}

expected<fs::path> publish_checkpoint(const fs::path& complete, const fs::path& target, file_system& files) {
  if (auto renamed = files.rename(complete, target, if_taken::refuse); !renamed)
    return fail(renamed.error().code == errc::already_exists ? step_exists(target) : std::move(renamed.error()));
  if (auto synced = files.sync_directory(target.parent_path()); !synced) {
    // A checkpoint that may not survive a crash must not look committed.
    std::ignore = files.rename(target, complete, if_taken::refuse);
    return fail(std::move(synced.error()));
  }
  return target;
}

expected<fs::path> commit_checkpoint(const fs::path& checkpoints_directory, const fs::path& temporary_directory,
                                     const manifest& content, file_system& files) {
  auto target = checkpoints_directory / checkpoint_name(content.step);
  TROUPE_TRY(check_parts(temporary_directory, content, files));
  TROUPE_TRY(remove_if_damaged(target, files));
  // Also syncs the directory's entries.
  TROUPE_TRY(write_manifest(temporary_directory / manifest_file_name, content, files));
  return publish_checkpoint(temporary_directory, target, files);
}

expected<std::vector<checkpoint_entry>> scan_steps(const fs::path& checkpoints_directory, file_system& files) {
  TROUPE_TRY(auto paths, directories_in(checkpoints_directory, files));
  auto result = std::vector<checkpoint_entry>{};
  for (auto& path : paths)
    if (auto step = parse_checkpoint_name(path.filename().string()))
      result.push_back({*step, std::move(path)});
  std::ranges::sort(result, {}, &checkpoint_entry::step);
  return result;
}

expected<std::vector<checkpoint_entry>> list_checkpoints(const fs::path& checkpoints_directory, file_system& files) {
  auto found = scan_steps(checkpoints_directory, files);
  if (!found)
    return found;
  auto result = std::vector<checkpoint_entry>{};
  for (auto& entry : *found) {
    TROUPE_TRY(auto kind, files.look_at(entry.path / manifest_file_name));
    if (kind == entry_kind::file)
      result.push_back(std::move(entry));
  }
  return result;
}

expected<std::vector<fs::path>> remove_abandoned(const fs::path& checkpoints_directory,
                                                 std::span<const fs::path> in_flight, file_system& files) {
  auto paths = directories_in(checkpoints_directory, files);
  if (!paths)
    return paths;
  std::erase_if(*paths, [&](const fs::path& path) {
    auto is_same = [&](const fs::path& other) { return other.filename() == path.filename(); };
    return !is_abandoned_name(path.filename().string()) || std::ranges::any_of(in_flight, is_same);
  });
  for (const auto& path : *paths)
    TROUPE_TRY(remove_tree(path, files));
  return paths;
}

expected<fs::path> set_aside(const fs::path& path, file_system& files) {
  auto target = path.parent_path() / fmt::format("{}{}", path.filename().string(), unreadable_suffix);
  for (auto number = 2;; ++number) {
    auto renamed = files.rename(path, target, if_taken::refuse);
    if (!renamed && renamed.error().code == errc::already_exists) {
      target.replace_extension(fmt::format("{}-{}", unreadable_suffix, number));
      continue;
    }
    if (!renamed)
      return fail(std::move(renamed.error()));
    TROUPE_TRY(files.sync_directory(path.parent_path()));
    return target;
  }
}

expected<void> remove_checkpoint(const fs::path& path, file_system& files) {
  auto hidden = path.parent_path() / fmt::format(".{}{}", path.filename().string(), removed_suffix);
  // An earlier removal of the same step may be unfinished.
  TROUPE_TRY(remove_tree(hidden, files));
  TROUPE_TRY(files.rename(path, hidden, if_taken::refuse));
  // The rename becomes durable before any file is removed: half a checkpoint never looks complete, even after a crash.
  TROUPE_TRY(files.sync_directory(path.parent_path()));
  return remove_tree(hidden, files);
}

expected<std::vector<retention_candidate>> list_candidates(const fs::path& checkpoints_directory, file_system& files) {
  TROUPE_TRY(auto entries, list_checkpoints(checkpoints_directory, files));
  auto result = std::vector<retention_candidate>{};
  for (const auto& entry : entries) {
    auto content = read_manifest(entry.path / manifest_file_name, files);
    result.push_back({entry.step, content ? std::move(content->metrics) : std::map<std::string, double>{}});
  }
  return result;
}

expected<std::vector<fs::path>> apply_retention(const fs::path& checkpoints_directory, const retention_policy& policy,
                                                std::span<const step_id> in_use, file_system& files) {
  if (policy.num_to_keep == 0)
    return fail(errc::invalid_argument, "num_to_keep is 0: keep at least one checkpoint");
  auto entries = list_checkpoints(checkpoints_directory, files);
  if (!entries)
    return fail(std::move(entries.error()));
  auto removed = std::vector<fs::path>{};
  if (entries->size() <= policy.num_to_keep)
    return removed;
  TROUPE_TRY(auto candidates, read_candidates(*entries, policy, files));
  auto decisions = decide_retention(candidates, policy);
  if (std::ranges::all_of(decisions, &retention_decision::stays))
    return removed;
  auto newest = checkpoint::open(entries->back().path, files, read_back::from_device);
  auto good = newest ? newest->verify(read_back::from_device) : tl::unexpected<error>{newest.error()};
  if (!good)
    return fail(good.error().code,
                fmt::format("no checkpoint is removed, because the newest is not valid: {}", good.error().message));
  // Decisions and entries are both ordered by step.
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].stays || std::ranges::find(in_use, decisions[i].step) != in_use.end())
      continue;
    TROUPE_TRY(remove_checkpoint((*entries)[i].path, files));
    removed.push_back((*entries)[i].path);
  }
  return removed;
}

expected<std::vector<fs::path>> apply_retention(const fs::path& checkpoints_directory, const retention_policy& policy,
                                                file_system& files) {
  return apply_retention(checkpoints_directory, policy, {}, files);
}

expected<std::vector<fs::path>> apply_retention(const fs::path& checkpoints_directory, std::size_t num_to_keep,
                                                file_system& files) {
  return apply_retention(checkpoints_directory, retention_policy{.num_to_keep = num_to_keep}, files);
}

} // namespace troupe::serialization
