#pragma once

#include <troupe/error.hpp>

#include <filesystem>

/// The socket in a run's directory over which other processes of this machine watch and steer the run.
namespace troupe::runtime {

inline constexpr auto control_socket_name = ".control";

/// Connects to the driver that listens in this directory. The caller owns the descriptor of the stream. Fails with
/// `errc::connection_refused` if nobody listens, `errc::not_authenticated` for the run of another user, and
/// `errc::unreachable`. The length of the path does not matter.
[[nodiscard]] expected<int> connect_to_run(const std::filesystem::path& directory);

} // namespace troupe::runtime
