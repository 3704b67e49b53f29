#pragma once

#include <troupe/config/cluster.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <optional>

namespace troupe::runtime {

/// The keys of a driver for connections to a node there: this machine's own for one on loopback, else the cluster's.
/// Nothing without TLS. Fails where there are none.
[[nodiscard]] expected<std::optional<tls_files>> keys_towards(const endpoint& where, const cluster_config& cluster);

/// The keys of a driver that may connect to all nodes of a cluster: this machine's own if it is known that none is
/// elsewhere, or if this host has no others.
[[nodiscard]] expected<tls_files> keys_for(const cluster_config& cluster);

} // namespace troupe::runtime
