#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <cstdint>
#include <string>

namespace troupe::runtime {

/// A listening socket on a port that the system chooses. It accepts connections from loopback only, or on all addresses
/// (of both families if the host has IPv6). Empty on failure, with `errno` set.
[[nodiscard]] collectives::unique_fd listen_on_any_port(bool loopback);

[[nodiscard]] std::uint16_t port_of(int socket);

/// The local address from which this machine reaches `host`; empty if it cannot. Sends nothing.
[[nodiscard]] std::string local_address_towards(const std::string& host);

} // namespace troupe::runtime
