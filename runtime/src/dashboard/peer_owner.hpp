#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <sys/types.h>

namespace troupe::runtime {

/// The user whose process has the other end of a connection over the loopback, from /proc/net/tcp and tcp6: the owner
/// of the socket with the local port `peer_port` that is connected to `own_port`. Nothing if there is none.
[[nodiscard]] std::optional<uid_t> owner_of_loopback_peer(std::uint16_t peer_port, std::uint16_t own_port);

/// The same from one of these files.
[[nodiscard]] std::optional<uid_t> find_loopback_owner(std::istream& table, std::uint16_t peer_port,
                                                       std::uint16_t own_port);

} // namespace troupe::runtime
