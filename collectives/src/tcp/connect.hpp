#pragma once

#include "transport/transport.hpp"

#include <troupe/collectives/tcp_communicator.hpp>

#include <memory>
#include <vector>

namespace troupe::collectives {

/// The transport of `make_tcp_communicator`. Connects to those ranks for which `is_peer` is true; the relation is
/// symmetric.
[[nodiscard]] expected<std::unique_ptr<transport>>
connect_tcp(const tcp_options& options, const std::vector<bool>& is_peer, const address_exchange& exchange);

} // namespace troupe::collectives
