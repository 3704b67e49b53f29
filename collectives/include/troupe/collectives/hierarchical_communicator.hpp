#pragma once

#include <troupe/collectives/gloo_communicator.hpp>
#include <troupe/collectives/shm_communicator.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::collectives {

/// A place in a group of several ranks on each of several hosts.
struct hierarchical_options {
  gloo_options place;

  /// The host of each rank, by rank; equal numbers share memory, any numbers do.
  std::vector<std::uint32_t> hosts;

  /// See `shm_options`.
  std::shared_ptr<shared_pool> pool;
  bool results_for_devices = false;
};

/// Forms a group that uses shared memory inside a host and TCP between hosts. Reductions and barriers happen inside
/// each host first, then among one rank of each host, the first; the bits are those of every other backend. Every rank
/// of the generation calls it, `addresses` among all ranks and `descriptors` among the ranks of a host, in rank order.
///
/// Fails as `make_gloo_communicator` and `make_shm_communicator` do.
[[nodiscard]] expected<std::unique_ptr<communicator>>
make_hierarchical_communicator(hierarchical_options options, const address_exchange& addresses,
                               const descriptor_exchange& descriptors);

} // namespace troupe::collectives
