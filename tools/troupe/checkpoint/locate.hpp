#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace troupe::tool {

/// What a path on the command line stands for.
struct place {
  /// All checkpoints in it, oldest first, damaged ones too; one if the path is a checkpoint itself.
  std::vector<std::filesystem::path> checkpoints;
  /// Whether the path is a checkpoint itself.
  bool single = false;
  /// The directory that holds them.
  std::filesystem::path directory;
};

/// Finds checkpoints at a run's directory, its `checkpoints` directory or a checkpoint's own. Fails with
/// `errc::not_found` if the path is none of these.
[[nodiscard]] expected<place> locate(const std::filesystem::path& path);

/// One checkpoint: the path itself, the one of `step` in it, or the newest in it. Fails with `errc::not_found`.
[[nodiscard]] expected<std::filesystem::path> locate_one(const std::filesystem::path& path,
                                                         std::optional<std::uint64_t> step);

} // namespace troupe::tool
