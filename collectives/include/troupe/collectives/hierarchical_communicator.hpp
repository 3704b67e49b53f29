#pragma once

#include <troupe/collectives/shm_communicator.hpp>
#include <troupe/collectives/tcp_communicator.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::collectives {

/// This rank's place in a group with several ranks on each of several hosts.
struct hierarchical_options {
  tcp_options place;

  /// The host of each rank, by rank. Ranks with equal numbers share memory; the numbers themselves are arbitrary.
  std::vector<std::uint32_t> hosts;

  /// See `shm_options`.
  std::shared_ptr<shared_pool> pool;
  bool results_for_devices = false;
};

/// Forms a group that uses shared memory inside a host and TCP between hosts. Reductions run inside each host first,
/// then between hosts, where each rank of a host carries a part of a large bucket; barriers among the hosts' first
/// ranks. Gives the same bits as the other transports. Every rank of the generation calls it. `addresses` exchanges
/// among all ranks, `descriptors` among the ranks of a host, both in rank order.
///
/// Fails as `make_tcp_communicator` and `make_shm_communicator` do.
[[nodiscard]] expected<std::unique_ptr<communicator>>
make_hierarchical_communicator(hierarchical_options options, const address_exchange& addresses,
                               const descriptor_exchange& descriptors);

} // namespace troupe::collectives
