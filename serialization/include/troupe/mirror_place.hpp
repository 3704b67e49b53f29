#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <optional>
#include <string>
#include <string_view>

/// Where a mirror is: a directory, or what rclone reaches, written `rclone:REMOTE:PATH` as in `rclone:s3:bucket/runs`.
/// Pure functions.
namespace troupe {

/// What rclone calls the place: "s3:bucket/runs" for "rclone:s3:bucket/runs". Nothing for a directory.
[[nodiscard]] std::optional<std::string> rclone_path_of(std::string_view place);

/// Whether the place is no directory of this host.
[[nodiscard]] bool is_remote_place(std::string_view place);

/// Fails with `errc::invalid_argument` for what is no place.
[[nodiscard]] expected<void> validate_mirror_place(std::string_view place);

/// The place `name` in `place`: "rclone:s3:bucket/runs/mnist".
[[nodiscard]] std::string join_mirror_place(std::string_view place, std::string_view name);

/// A run's place at a mirror, and one of its checkpoints.
struct mirrored_run {
  std::string place;
  /// Nothing: its newest.
  std::optional<step_id> step;

  bool operator==(const mirrored_run&) const = default;
};

/// What a place means of which one checkpoint is wanted: a run's place, its `checkpoints`, or that of one checkpoint.
[[nodiscard]] mirrored_run parse_mirrored_run(std::string_view place);

} // namespace troupe
