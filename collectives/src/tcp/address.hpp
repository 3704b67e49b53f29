#pragma once

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <string>

namespace troupe::collectives::tcp {

/// A rank's address, as exchanged over the control plane. Short, because every rank gets every other's: a byte for the
/// format and encryption, 4 bytes to recognise a blob of another group, the port, and the host in 4 or 16 bytes. Ports
/// and hosts are in network byte order.
[[nodiscard]] std::string encode(const tcp_options& options, const address& at);

/// Reads the blob of `peer`, and checks that it belongs to this rank's group.
[[nodiscard]] expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& blob);

/// "rank 1 of 4, generation 2".
[[nodiscard]] std::string describe(const tcp_options& options);

} // namespace troupe::collectives::tcp
