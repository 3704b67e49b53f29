#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <optional>
#include <string>
#include <string_view>

/// Where a mirror is: a directory; what rclone reaches, written `rclone:REMOTE:PATH` as in `rclone:s3:bucket/runs`; or
/// a node that keeps mirrors, `node:HOST:PORT` or `node:HOST:PORT/PATH`. Pure functions.
namespace troupe {

/// What rclone calls the place: "s3:bucket/runs" for "rclone:s3:bucket/runs". Nothing for a directory.
[[nodiscard]] std::optional<std::string> rclone_path_of(std::string_view place);

/// A place in the directory of mirrors of a node (`caf-node --mirror`).
struct node_place {
  /// "HOST:PORT".
  std::string address;
  /// Empty, or names separated by slashes.
  std::string path;

  bool operator==(const node_place&) const = default;
};

/// Nothing for other places, and for `node:` without an address behind it.
[[nodiscard]] std::optional<node_place> node_place_of(std::string_view place);

/// Whether the path is one or several names separated by slashes, none of which begins with a period, is longer than
/// 255 bytes, or has a control character or a backslash.
[[nodiscard]] bool is_plain_path(std::string_view path);

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
