#pragma once

#include "worker/life/driver_client.hpp"

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/shared_pool.hpp>
#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::runtime {

/// This worker's place in a group that is to be formed.
struct group_formation {
  collectives::tcp_options place;
  transport_kind transport = transport_kind::self;
  /// The node of each rank.
  std::vector<std::uint32_t> nodes;
  /// Its place among the ranks of its node.
  descriptor_offer on_node;
  /// For transports that use shared memory.
  std::shared_ptr<collectives::shared_pool> pool;
  bool results_for_devices = false;
};

[[nodiscard]] constexpr bool uses_shared_memory(transport_kind transport) noexcept {
  return transport == transport_kind::shm || transport == transport_kind::hierarchical;
}

/// The node of each rank.
[[nodiscard]] std::vector<std::uint32_t> nodes_by_rank(const std::vector<node_ranks>& nodes, std::size_t world_size);

/// All ranks call it. `addresses` is an all-gather among them. Fails as the makers of communicators do.
[[nodiscard]] expected<std::unique_ptr<collectives::communicator>>
form_communicator(group_formation how, const collectives::address_exchange& addresses, driver_client& driver);

} // namespace troupe::runtime
