#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace troupe::tool {

/// The object to which a path on the command line refers.
struct place {
  /// All checkpoints in it, including damaged ones, oldest first; only one if the path is a checkpoint.
  std::vector<std::filesystem::path> checkpoints;
  /// Whether the path is a checkpoint.
  bool single = false;
  /// The directory that contains them.
  std::filesystem::path directory;
};

/// Finds the checkpoints of a run's directory, a `checkpoints` directory, or a single checkpoint. Fails with
/// `errc::not_found` for any other path.
[[nodiscard]] expected<place> locate(const std::filesystem::path& path);

/// Finds one checkpoint: the path itself, the one of `step` in it, or the newest in it. Fails with `errc::not_found`.
[[nodiscard]] expected<std::filesystem::path> locate_one(const std::filesystem::path& path,
                                                         std::optional<std::uint64_t> step);

} // namespace troupe::tool
