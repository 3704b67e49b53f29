#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/shared_pool.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace troupe::collectives {

/// An all-gather of descriptors among the ranks of one host: takes this rank's (borrowed), returns copies of all ranks'
/// in rank order, with this rank's entry empty. All ranks pass the same number.
using descriptor_exchange = std::function<expected<std::vector<std::vector<unique_fd>>>(std::span<const int> mine)>;

/// This rank's place in a group whose ranks share memory.
struct shm_options {
  rank_id rank;
  /// At most 256.
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The longest that one call may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The memory that `communicator::memory()` allocates from: one per process, for its lifetime.
  std::shared_ptr<shared_pool> pool;

  /// The ranks' numbers in a larger group, for messages; empty if they are the same.
  std::vector<rank_id> names = {};

  /// Devices read the results, so they are mapped in a way that can be pinned.
  bool results_for_devices = false;
};

/// Forms the group. Every rank of the generation on this host calls it. Calls `exchange` once. The other ranks can read
/// a rank's memory but not write it (results for devices: by convention). It is freed when the last process that maps
/// it ends, however that happens.
///
/// Fails with the exchange's error, `errc::mismatch` (a descriptor is from another generation or group),
/// `errc::io_error` (out of memory), `errc::invalid_argument`.
[[nodiscard]] expected<std::unique_ptr<communicator>> make_shm_communicator(shm_options options,
                                                                            const descriptor_exchange& exchange);

} // namespace troupe::collectives
