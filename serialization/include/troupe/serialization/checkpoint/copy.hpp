#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/types.hpp>

#include <filesystem>
#include <stop_token>

namespace troupe::serialization {

/// Where a copy of the checkpoint of `step` is made, beside the committed ones in `checkpoints_directory`.
/// `remove_abandoned` removes what is left there.
[[nodiscard]] std::filesystem::path copy_directory(const std::filesystem::path& checkpoints_directory, step_id step);

/// Makes `copy_directory`, without what an earlier attempt left there. Returns it.
[[nodiscard]] expected<std::filesystem::path> begin_copy(const std::filesystem::path& checkpoints_directory,
                                                         step_id step, file_system& files = local_files());

/// Makes a checkpoint of what is in `copy_directory`: reads every byte back from the device, syncs, and renames the
/// directory to its final name. Returns the new path once it is on the device; readers do not find it earlier. Fails
/// with `errc::damaged` if it does not verify or is of another step, with `errc::already_exists` if there is a good
/// checkpoint of this step (a damaged one is replaced), with `errc::aborted` if `stop` was requested, or with
/// `errc::io_error`; the directory is then removed.
[[nodiscard]] expected<std::filesystem::path> adopt_copy(const std::filesystem::path& checkpoints_directory,
                                                         step_id step, const std::stop_token& stop = {},
                                                         file_system& files = local_files());

/// Copies the committed checkpoint `from` into another directory of checkpoints, which exists: parts, then the
/// manifest, then as `adopt_copy`. Returns and fails as that; also with `errc::not_found` if `from` is not there (any
/// more). A file that the checkpoint shares with others by hard links is copied.
[[nodiscard]] expected<std::filesystem::path> copy_checkpoint(const std::filesystem::path& from,
                                                              const std::filesystem::path& checkpoints_directory,
                                                              const std::stop_token& stop = {},
                                                              file_system& files = local_files());

} // namespace troupe::serialization
