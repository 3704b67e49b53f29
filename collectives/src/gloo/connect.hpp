#pragma once

#include "transport/transport.hpp"

#include <troupe/collectives/gloo_communicator.hpp>

#include <memory>
#include <vector>

namespace troupe::collectives {

/// What `make_gloo_communicator` stands on; connects to those ranks only that are peers. Being a peer is mutual.
[[nodiscard]] expected<std::unique_ptr<transport>>
connect_gloo(const gloo_options& options, const std::vector<bool>& is_peer, const address_exchange& exchange);

} // namespace troupe::collectives
