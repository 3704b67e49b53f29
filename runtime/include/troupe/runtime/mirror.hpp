#pragma once

#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>

#include <memory>
#include <string>

namespace troupe::runtime {

/// Opens the place of a run at a mirror: a directory, which need not exist; or `rclone:REMOTE:PATH`, through the
/// program `rclone`, a name in PATH or a path, as child processes that end with this one and take over the CPU and I/O
/// priority of the calling thread. Fails with `errc::not_found` if there is no rclone, and with
/// `errc::invalid_argument` for what is no place of a run.
[[nodiscard]] expected<std::unique_ptr<actors::mirror_storage>> open_mirror(const std::string& place,
                                                                            const std::string& rclone);

} // namespace troupe::runtime
