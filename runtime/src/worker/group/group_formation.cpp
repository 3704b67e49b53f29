#include "worker/group/group_formation.hpp"

#include <troupe/collectives/hierarchical_communicator.hpp>
#include <troupe/collectives/shm_communicator.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace troupe::runtime {

std::vector<std::uint32_t> nodes_by_rank(const std::vector<node_ranks>& nodes, std::size_t world_size) {
  std::vector<std::uint32_t> result;
  for (const auto& [node, count] : nodes)
    result.insert(result.end(), std::min<std::size_t>(count, world_size - result.size()), node);
  return result;
}

expected<std::unique_ptr<collectives::communicator>>
form_communicator(group_formation how, const collectives::address_exchange& addresses, driver_client& driver) {
  const auto descriptors = [&driver, on_node = how.on_node,
                            cancelled = how.place.cancelled](std::span<const int> mine) {
    return driver.exchange_descriptors(on_node, mine, cancelled);
  };
  switch (how.transport) {
  case transport_kind::self:
    return collectives::make_self_communicator(how.place.generation);
  case transport_kind::tcp:
    return collectives::make_tcp_communicator(how.place, addresses);
  case transport_kind::shm:
    return collectives::make_shm_communicator({how.place.rank,
                                               how.place.world_size,
                                               how.place.generation,
                                               how.place.deadline,
                                               std::move(how.pool),
                                               {},
                                               how.results_for_devices},
                                              descriptors);
  case transport_kind::hierarchical:
    return collectives::make_hierarchical_communicator(
        {std::move(how.place), std::move(how.nodes), std::move(how.pool), how.results_for_devices}, addresses,
        descriptors);
  }
  return fail(errc::internal, "no such transport");
}

} // namespace troupe::runtime
