#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::actors {

/// The checkpoints at a run's mirror.
struct mirror_content {
  /// Those that have a manifest, oldest first.
  std::vector<step_id> complete;
  /// What is left of uploads that did not get to their end.
  std::vector<step_id> incomplete;
};

/// The place of one run at a mirror, laid out like the run's directory. Its functions block on a device or a network,
/// and fail with `errc::aborted` soon after `stop` is requested. Used by one thread at a time. Other errors are
/// `errc::not_found` where that is said, `errc::io_error` and `errc::damaged`; they say what to do.
class mirror_storage {
 public:
  virtual ~mirror_storage() = default;

  /// For people: "/mnt/mirror/digits", "rclone:s3:bucket/digits".
  [[nodiscard]] virtual const std::string& place() const noexcept = 0;

  /// Nothing is there if the place does not exist.
  [[nodiscard]] virtual expected<mirror_content> list(const std::stop_token& stop) = 0;

  /// Copies a checkpoint, verifies the copy, and then lets readers find it. Does nothing if the mirror has it.
  [[nodiscard]] virtual expected<void> upload(const std::filesystem::path& checkpoint, const std::stop_token& stop) = 0;
  /// Removes a checkpoint, or what is left of one: first what lets readers find it.
  [[nodiscard]] virtual expected<void> remove(step_id step, const std::stop_token& stop) = 0;
  /// Copies files of the run's directory `root`, as they are now, over those of the same names. Those that are not
  /// there are left out.
  [[nodiscard]] virtual expected<void> upload_files(const std::filesystem::path& root,
                                                    const std::vector<std::string>& names,
                                                    const std::stop_token& stop) = 0;

  /// Copies a checkpoint into a directory of checkpoints, and verifies the copy. Fails with `errc::damaged` if it does
  /// not verify, and with `errc::already_exists` if the directory has a good one.
  [[nodiscard]] virtual expected<void> fetch(step_id step, const std::filesystem::path& checkpoints_directory,
                                             const std::stop_token& stop) = 0;
  /// Copies the file `name`, a path in the place. Fails with `errc::not_found` if there is none.
  [[nodiscard]] virtual expected<void> fetch_file(const std::string& name, const std::filesystem::path& to,
                                                  const std::stop_token& stop) = 0;

  /// Renames the place to `place.1`, `place.2`, ..., if something is there. Returns its new name; empty if nothing was.
  [[nodiscard]] virtual expected<std::string> move_aside(const std::stop_token& stop) = 0;
};

} // namespace troupe::actors
