#pragma once

#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/members.hpp>

#include <memory>
#include <string>

namespace troupe::runtime {

/// How a mirror is reached.
struct mirror_access {
  /// The program rclone: a name in PATH, or a path.
  std::string rclone = "rclone";
  /// For places at nodes. The default has the user's keys.
  member_access nodes = {};
};

/// Opens the place of a run at a mirror: a directory, which need not exist; `rclone:REMOTE:PATH`, through rclone as
/// child processes that end with this one and take over the CPU and I/O priority of the calling thread; or
/// `node:HOST:PORT/PATH`, at a node that keeps mirrors, to which it connects with the first call. Fails with
/// `errc::not_found` if there is no rclone, and with `errc::invalid_argument` for what is no place of a run.
[[nodiscard]] expected<std::unique_ptr<actors::mirror_storage>> open_mirror(const std::string& place,
                                                                            const mirror_access& how);

} // namespace troupe::runtime
