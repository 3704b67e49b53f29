#pragma once

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <string>

namespace troupe::collectives::tcp {

/// What a rank tells the others over the control plane. Every rank gets that of every other, so it is short: a byte
/// that says what follows and whether the rank encrypts, 4 bytes by which a blob of another group is recognised, the
/// port and the host, 4 or 16 bytes. Ports and hosts are in the network's byte order.
[[nodiscard]] std::string encode(const tcp_options& options, const address& at);

/// Reads the blob of `peer`, and checks that it belongs to this rank's group.
[[nodiscard]] expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& blob);

/// "rank 1 of 4, generation 2".
[[nodiscard]] std::string describe(const tcp_options& options);

} // namespace troupe::collectives::tcp
