#pragma once

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <netinet/in.h>
#include <string>

namespace troupe::collectives::tcp {

/// An address of this family, and of no other.
[[nodiscard]] inline const sockaddr_in& as_ipv4(const address& x) noexcept {
  return *reinterpret_cast<const sockaddr_in*>(x.data());
}
[[nodiscard]] inline const sockaddr_in6& as_ipv6(const address& x) noexcept {
  return *reinterpret_cast<const sockaddr_in6*>(x.data());
}

/// What a rank tells the others over the control plane. Every rank gets that of every other, so it is short: a byte
/// that says what follows and whether the rank encrypts, 4 bytes by which a blob of another group is recognised, the
/// port and the host, 4 or 16 bytes. Ports and hosts are in the network's byte order.
[[nodiscard]] std::string encode(const tcp_options& options, const address& at);

/// Reads the blob of `peer`, and checks that it belongs to this rank's group.
[[nodiscard]] expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& blob);

/// "rank 1 of 4, generation 2".
[[nodiscard]] std::string describe(const tcp_options& options);

} // namespace troupe::collectives::tcp
