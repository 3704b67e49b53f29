#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/checkpoint/retention.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// "step-00000100": the directory name of a committed checkpoint.
[[nodiscard]] std::string checkpoint_name(step_id step);

/// The step in a name made by `checkpoint_name`; `nullopt` for any other name.
[[nodiscard]] std::optional<step_id> parse_checkpoint_name(std::string_view name);

/// Attempts from this number on are last copies: copies of the whole state by a worker that must exit and may be the
/// only one to have the state. They wait for no other part, so that a new generation does not invalidate them.
inline constexpr std::uint32_t first_last_copy = 1000;

/// Which attempt at a checkpoint a temporary directory holds.
struct attempt_name {
  run_id run;
  step_id step;
  generation_id generation;
  std::uint32_t attempt = 0;

  bool operator==(const attempt_name&) const = default;
};

/// ".step-00000100.r0123abcd.g1.a1.tmp": the directory in which an attempt at a checkpoint is written, beside the
/// committed ones. All participants compute the same name; every attempt has its own. Letters and digits of the run's
/// id count.
[[nodiscard]] std::string temporary_name(const attempt_name& which);

/// Parses a name made by `temporary_name`; `nullopt` for any other name.
[[nodiscard]] std::optional<attempt_name> parse_temporary_name(std::string_view name);

/// Whether an unfinished removal left a directory of this name. It is not in use.
[[nodiscard]] bool is_removed_name(std::string_view name);

/// A committed checkpoint, identified by its name.
struct checkpoint_entry {
  step_id step;
  std::filesystem::path path;

  bool operator==(const checkpoint_entry&) const = default;
};

/// Commits the checkpoint in `temporary_directory`, whose parts are written: checks that all parts of `content` exist
/// with their sizes, writes the manifest, and renames the directory to its final name in `checkpoints_directory`.
/// Returns the new path once the checkpoint is on the device; readers do not find it earlier. Never overwrites: fails
/// with `errc::already_exists` if the step has a checkpoint, unless that one is damaged, in which case it is removed.
/// Fails with `errc::damaged` if a part is missing or has the wrong size, and as `write_manifest` does. After a failure
/// `remove_abandoned` removes the temporary directory.
[[nodiscard]] expected<std::filesystem::path> commit_checkpoint(const std::filesystem::path& checkpoints_directory,
                                                                const std::filesystem::path& temporary_directory,
                                                                const manifest& content,
                                                                file_system& files = local_files());

/// The committed checkpoints, oldest step first; empty if the directory does not exist. Looks at names only (the
/// directory's, and that a manifest is there), so a checkpoint may still be damaged.
[[nodiscard]] expected<std::vector<checkpoint_entry>>
list_checkpoints(const std::filesystem::path& checkpoints_directory, file_system& files = local_files());

/// Removes what unfinished attempts and removals left, except the attempts in `in_flight` (names or paths of temporary
/// directories). Returns the removed paths. Fails with `errc::io_error`.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
remove_abandoned(const std::filesystem::path& checkpoints_directory,
                 std::span<const std::filesystem::path> in_flight = {}, file_system& files = local_files());

/// Removes a committed checkpoint. Readers stop finding it at once; a crash during the removal leaves a directory for
/// `remove_abandoned`. Fails with `errc::not_found` or `errc::io_error`.
[[nodiscard]] expected<void> remove_checkpoint(const std::filesystem::path& path, file_system& files = local_files());

/// Renames an unreadable checkpoint to `step-00000020.unreadable`, so that it no longer counts as a checkpoint, and
/// returns the new path. A run that resumes from an older checkpoint can then write this step again. Removes nothing.
/// Fails with `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> set_aside(const std::filesystem::path& path,
                                                        file_system& files = local_files());

/// The committed checkpoints with their metrics, oldest step first. One whose manifest cannot be read has no metrics.
[[nodiscard]] expected<std::vector<retention_candidate>>
list_candidates(const std::filesystem::path& checkpoints_directory, file_system& files = local_files());

/// Removes the checkpoints that `decide_retention` does not keep, and returns them, oldest first; the newest and the
/// best are never removed. First reads the newest back from the device: if it does not verify, nothing is removed and
/// the error says why (`errc::damaged`, `errc::unsupported_version`, `errc::io_error`). Reads nothing if there are at
/// most `num_to_keep`. A checkpoint with a damaged manifest is never the best.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
apply_retention(const std::filesystem::path& checkpoints_directory, const retention_policy& policy,
                file_system& files = local_files());

/// The same, without those of the steps `in_use`, which somebody reads: they are removed by a later call.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
apply_retention(const std::filesystem::path& checkpoints_directory, const retention_policy& policy,
                std::span<const step_id> in_use, file_system& files = local_files());

/// The same, by age only.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
apply_retention(const std::filesystem::path& checkpoints_directory, std::size_t num_to_keep,
                file_system& files = local_files());

} // namespace troupe::serialization
