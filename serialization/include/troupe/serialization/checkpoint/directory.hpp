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

/// "step-00000100": the directory of a committed checkpoint.
[[nodiscard]] std::string checkpoint_name(step_id step);

/// The step of a name that `checkpoint_name` makes; nothing for any other name.
[[nodiscard]] std::optional<step_id> parse_checkpoint_name(std::string_view name);

/// Attempts from here on are last copies: of the whole state, by a worker that has to end and may be the only one that
/// has it. They wait for no other part, so that no generation that begins meanwhile makes them void.
inline constexpr std::uint32_t first_last_copy = 1000;

/// ".step-00000100.g1.a1.tmp": where an attempt at a checkpoint is written, beside the committed ones. Everybody who
/// takes part computes the same name, and no two attempts share one.
[[nodiscard]] std::string temporary_name(step_id step, generation_id generation, std::uint32_t attempt);

/// What `temporary_name` was made of.
struct attempt_name {
  step_id step;
  generation_id generation;
  std::uint32_t attempt = 0;

  bool operator==(const attempt_name&) const = default;
};

/// Takes a name that `temporary_name` makes apart; nothing for any other name.
[[nodiscard]] std::optional<attempt_name> parse_temporary_name(std::string_view name);

/// Whether a removal has left this name: nobody uses what it stands for.
[[nodiscard]] bool is_removed_name(std::string_view name);

/// A committed checkpoint, by its name.
struct checkpoint_entry {
  step_id step;
  std::filesystem::path path;

  bool operator==(const checkpoint_entry&) const = default;
};

/// Makes a checkpoint out of `temporary_directory`, whose parts have been written: looks that all parts of `content`
/// are there with their sizes, writes the manifest, and gives the directory its final name in `checkpoints_directory`.
/// When it returns, the checkpoint is on the device and is found; before, it is not. Returns its path. Never
/// overwrites: fails with `errc::already_exists` if the step has a checkpoint, unless that is damaged, which is
/// removed. Fails with `errc::damaged` if a part is missing or has another size, and as `write_manifest` does. After a
/// failure the temporary directory is left to `remove_abandoned`.
[[nodiscard]] expected<std::filesystem::path> commit_checkpoint(const std::filesystem::path& checkpoints_directory,
                                                                const std::filesystem::path& temporary_directory,
                                                                const manifest& content,
                                                                file_system& files = local_files());

/// The committed checkpoints, oldest step first. None if the directory does not exist. Reads names only: a checkpoint
/// may be damaged all the same.
[[nodiscard]] expected<std::vector<checkpoint_entry>>
list_checkpoints(const std::filesystem::path& checkpoints_directory, file_system& files = local_files());

/// Removes what attempts and removals that did not finish have left, but for the attempts named in `in_flight` (names
/// or paths of temporary directories). Returns what it removed. Fails with `errc::io_error`.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
remove_abandoned(const std::filesystem::path& checkpoints_directory,
                 std::span<const std::filesystem::path> in_flight = {}, file_system& files = local_files());

/// Removes one committed checkpoint. It stops being one at once; a crash in the middle leaves a directory for
/// `remove_abandoned`. Fails with `errc::not_found` or `errc::io_error`.
[[nodiscard]] expected<void> remove_checkpoint(const std::filesystem::path& path, file_system& files = local_files());

/// Gives a checkpoint that could not be read a name under which it is none, `step-00000020.unreadable`, and returns its
/// path: a run that goes on from an older one comes to its step again. Nothing is removed. Fails with `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> set_aside(const std::filesystem::path& path,
                                                        file_system& files = local_files());

/// Removes the checkpoints that do not stay by `decide_retention`, and returns them, oldest first; the newest and the
/// best are never among them. Before that the newest is read back from the device: if it does not verify, nothing is
/// removed and the error says why (`errc::damaged`, `errc::unsupported_version`, `errc::io_error`). Reads nothing when
/// there are no more than `num_to_keep`. One whose manifest is damaged is not the best.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
apply_retention(const std::filesystem::path& checkpoints_directory, const retention_policy& policy,
                file_system& files = local_files());

/// The same, by age alone.
[[nodiscard]] expected<std::vector<std::filesystem::path>>
apply_retention(const std::filesystem::path& checkpoints_directory, std::size_t num_to_keep,
                file_system& files = local_files());

} // namespace troupe::serialization
