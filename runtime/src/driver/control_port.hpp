#pragma once

#include "driver/line_session.hpp"

#include <troupe/actors/trainer.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>

namespace troupe::runtime {

struct control_port_limits {
  line_limits line;
  std::size_t connections = 64;
  /// How long the last lines may take to leave at the end.
  std::chrono::milliseconds closing{500};
};

/// Listens on a Unix socket in a run's directory, whose lock the caller holds: the socket of a driver that was killed
/// is replaced. Processes of the same user and of root may connect. Has a thread of its own, from `serve` on. Fails
/// with `errc::io_error` where the file system has no sockets.
[[nodiscard]] expected<std::unique_ptr<actors::control_port>> open_control_port(const std::filesystem::path& directory,
                                                                                const control_port_limits& limits = {});

} // namespace troupe::runtime
