#include <troupe/serialization/checkpoint_directory.hpp>

#include <troupe/serialization/checkpoint.hpp>

#include "directory_scan.hpp"
#include "file.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view final_prefix = "step-";
constexpr std::string_view temporary_prefix = ".step-";
constexpr std::string_view temporary_suffix = ".tmp";
constexpr std::string_view removed_suffix = ".removed";

/// The paths of the directories inside of `directory`, none if it does not exist.
expected<std::vector<fs::path>> directories_in(const fs::path& directory) {
  auto code = std::error_code{};
  auto result = std::vector<fs::path>{};
  auto entries = fs::directory_iterator{directory, code};
  if (code == std::errc::no_such_file_or_directory)
    return result;
  for (; !code && entries != fs::directory_iterator{}; entries.increment(code)) {
    auto ignored = std::error_code{};
    if (entries->symlink_status(ignored).type() == fs::file_type::directory)
      result.push_back(entries->path());
  }
  if (code)
    return fail(filesystem_error(code, "listing", directory));
  std::ranges::sort(result);
  return result;
}

bool is_abandoned_name(std::string_view name) {
  return name.starts_with(temporary_prefix) && (name.ends_with(temporary_suffix) || name.ends_with(removed_suffix));
}

expected<void> remove_tree(const fs::path& path) {
  auto code = std::error_code{};
  fs::remove_all(path, code);
  if (code)
    return fail(filesystem_error(code, "removing", path));
  return {};
}

expected<void> check_parts(const fs::path& directory, const manifest& content) {
  for (const auto& part : content.parts) {
    auto code = std::error_code{};
    auto path = directory / part.name;
    auto size = fs::file_size(path, code);
    if (code)
      return fail(errc::damaged, "the checkpoint of step " + std::to_string(content.step.value) +
                                     " is not committed: " + path.string() + ": " + code.message());
    if (size != part.size_bytes)
      return fail(errc::damaged, "the checkpoint of step " + std::to_string(content.step.value) +
                                     " is not committed: " + path.string() + " has " + std::to_string(size) +
                                     " bytes, its writer reported " + std::to_string(part.size_bytes));
  }
  return {};
}

error step_exists(const fs::path& path) {
  return {errc::already_exists, path.string() + " exists; a checkpoint is never overwritten"};
}

/// Renames `from` to a name that is free; never replaces anything.
expected<void> rename_to_free(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return {};
  if (errno == EEXIST || errno == ENOTEMPTY)
    return fail(step_exists(to));
  if (errno != EINVAL && errno != ENOSYS)
    return fail(system_error("renaming " + from.string() + " to " + to.string()));
  // A file system without it (NFS). A run has one committer, so looking first is enough.
  auto code = std::error_code{};
  if (fs::exists(to, code))
    return fail(step_exists(to));
  fs::rename(from, to, code);
  if (code)
    return fail(filesystem_error(code, "renaming to", to));
  return {};
}

} // namespace

std::string checkpoint_name(step_id step) {
  auto digits = std::to_string(step.value);
  return std::string{final_prefix} + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
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

std::string temporary_name(step_id step, generation_id generation, std::uint32_t attempt) {
  return '.' + checkpoint_name(step) + ".g" + std::to_string(generation.value) + ".a" + std::to_string(attempt) +
         std::string{temporary_suffix};
}

expected<fs::path> commit_checkpoint(const fs::path& checkpoints_directory, const fs::path& temporary_directory,
                                     const manifest& content) {
  auto target = checkpoints_directory / checkpoint_name(content.step);
  auto code = std::error_code{};
  if (fs::exists(target, code))
    return fail(step_exists(target));
  if (auto good = check_parts(temporary_directory, content); !good)
    return fail(std::move(good.error()));
  // This brings the directory's entries to the device as well.
  if (auto written = write_manifest(temporary_directory / manifest_file_name, content); !written)
    return fail(std::move(written.error()));
  if (auto renamed = rename_to_free(temporary_directory, target); !renamed)
    return fail(std::move(renamed.error()));
  if (auto synced = sync_directory(checkpoints_directory); !synced) {
    // What may not survive a crash must not look committed.
    fs::rename(target, temporary_directory, code);
    return fail(std::move(synced.error()));
  }
  return target;
}

expected<std::vector<checkpoint_entry>> scan_steps(const fs::path& checkpoints_directory) {
  auto paths = directories_in(checkpoints_directory);
  if (!paths)
    return fail(std::move(paths.error()));
  auto result = std::vector<checkpoint_entry>{};
  for (auto& path : *paths)
    if (auto step = parse_checkpoint_name(path.filename().string()))
      result.push_back({*step, std::move(path)});
  std::ranges::sort(result, {}, &checkpoint_entry::step);
  return result;
}

expected<std::vector<checkpoint_entry>> list_checkpoints(const fs::path& checkpoints_directory) {
  auto result = scan_steps(checkpoints_directory);
  if (result)
    std::erase_if(*result, [](const checkpoint_entry& entry) {
      auto code = std::error_code{};
      return !fs::is_regular_file(entry.path / manifest_file_name, code);
    });
  return result;
}

expected<std::vector<fs::path>> remove_abandoned(const fs::path& checkpoints_directory,
                                                 std::span<const fs::path> in_flight) {
  auto paths = directories_in(checkpoints_directory);
  if (!paths)
    return paths;
  std::erase_if(*paths, [&](const fs::path& path) {
    auto is_same = [&](const fs::path& other) { return other.filename() == path.filename(); };
    return !is_abandoned_name(path.filename().string()) || std::ranges::any_of(in_flight, is_same);
  });
  for (const auto& path : *paths)
    if (auto removed = remove_tree(path); !removed)
      return fail(std::move(removed.error()));
  return paths;
}

expected<void> remove_checkpoint(const fs::path& path) {
  auto hidden = path.parent_path() / ('.' + path.filename().string() + std::string{removed_suffix});
  // A removal of the same step that did not finish.
  if (auto removed = remove_tree(hidden); !removed)
    return removed;
  auto code = std::error_code{};
  fs::rename(path, hidden, code);
  if (code)
    return fail(filesystem_error(code, "removing", path));
  // First the name, for good; then the files: half a checkpoint never looks whole, even after a crash.
  if (auto synced = sync_directory(path.parent_path()); !synced)
    return synced;
  return remove_tree(hidden);
}

expected<std::vector<fs::path>> apply_retention(const fs::path& checkpoints_directory, std::size_t num_to_keep) {
  if (num_to_keep == 0)
    return fail(errc::invalid_argument, "num_to_keep is 0: keep one checkpoint at least");
  auto entries = list_checkpoints(checkpoints_directory);
  if (!entries)
    return fail(std::move(entries.error()));
  auto removed = std::vector<fs::path>{};
  if (entries->size() <= num_to_keep)
    return removed;
  auto newest = checkpoint::open(entries->back().path);
  auto good = newest ? newest->verify(read_back::from_device) : tl::unexpected<error>{newest.error()};
  if (!good)
    return fail(good.error().code, "no checkpoint is removed, because the newest is not good: " + good.error().message);
  for (std::size_t i = 0; i + num_to_keep < entries->size(); ++i) {
    if (auto done = remove_checkpoint((*entries)[i].path); !done)
      return fail(std::move(done.error()));
    removed.push_back((*entries)[i].path);
  }
  return removed;
}

} // namespace troupe::serialization
