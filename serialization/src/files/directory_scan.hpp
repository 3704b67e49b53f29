#pragma once

#include <troupe/serialization/checkpoint/directory.hpp>

#include <filesystem>
#include <vector>

namespace troupe::serialization {

/// The directories that are named as checkpoints, oldest step first, whether they hold a manifest or not.
[[nodiscard]] expected<std::vector<checkpoint_entry>> scan_steps(const std::filesystem::path& checkpoints_directory,
                                                                 file_system& files);

} // namespace troupe::serialization
