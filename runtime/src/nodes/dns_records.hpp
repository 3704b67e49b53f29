#pragma once

#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// The hosts and ports in the SRV records of a name (RFC 2782), sorted; their priorities and weights do not matter.
/// Asks the servers of /etc/resolv.conf, or this one at an address of IPv4. Blocks for 10 seconds at most. Fails with
/// `errc::not_found` if the name has none, and with `errc::unreachable` if no server answers.
[[nodiscard]] expected<std::vector<endpoint>> find_services(const std::string& name,
                                                            const std::optional<endpoint>& server = {});

/// The addresses of a host's name, as the system resolves it, with this port; sorted. Those of IPv4 if there are any: a
/// node that listens on both is one. Fails with `errc::not_found`.
[[nodiscard]] expected<std::vector<endpoint>> find_addresses(const endpoint& host);

} // namespace troupe::runtime
