#pragma once

#include "transport/transport.hpp"

#include <troupe/collectives/gloo_communicator.hpp>

#include <memory>
#include <vector>

namespace troupe::collectives {

/// The transport of `make_gloo_communicator`. Connects to those ranks for which `is_peer` is true; the relation is
/// symmetric.
[[nodiscard]] expected<std::unique_ptr<transport>>
connect_gloo(const gloo_options& options, const std::vector<bool>& is_peer, const address_exchange& exchange);

} // namespace troupe::collectives
