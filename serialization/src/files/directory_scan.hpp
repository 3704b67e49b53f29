#pragma once

#include <troupe/serialization/checkpoint/directory.hpp>

#include <filesystem>
#include <vector>

namespace troupe::serialization {

/// The directories with a checkpoint's name, oldest step first, with or without a manifest.
[[nodiscard]] expected<std::vector<checkpoint_entry>> scan_steps(const std::filesystem::path& checkpoints_directory,
                                                                 file_system& files);

/// Removes a directory and everything below it, if it exists. Links are removed, not followed.
[[nodiscard]] expected<void> remove_tree(const std::filesystem::path& path, file_system& files);

/// Removes a damaged checkpoint at `target`. Fails with `errc::already_exists` if there is a valid one.
[[nodiscard]] expected<void> remove_if_damaged(const std::filesystem::path& target, file_system& files);

/// Renames a complete directory to a checkpoint's name in the same directory, and returns that once it is on the
/// device. Fails with `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path>
publish_checkpoint(const std::filesystem::path& complete, const std::filesystem::path& target, file_system& files);

} // namespace troupe::serialization
