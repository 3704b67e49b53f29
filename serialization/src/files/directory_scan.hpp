#pragma once

#include <troupe/serialization/checkpoint/directory.hpp>

#include <filesystem>
#include <vector>

namespace troupe::serialization {

/// The directories with a checkpoint's name, oldest step first, with or without a manifest.
[[nodiscard]] expected<std::vector<checkpoint_entry>> scan_steps(const std::filesystem::path& checkpoints_directory,
                                                                 file_system& files);

} // namespace troupe::serialization
