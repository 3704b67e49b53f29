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

/// An all-gather of descriptors among the ranks of one host: takes this rank's (borrowed), gives copies of all ranks'
/// in rank order, this rank's own place empty. Ranks give equally many.
using descriptor_exchange = std::function<expected<std::vector<std::vector<unique_fd>>>(std::span<const int> mine)>;

/// A place in a group whose ranks share memory.
struct shm_options {
  rank_id rank;
  /// At most 64.
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The longest that one call may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The memory that `communicator::memory()` hands out: one for each process, for its life.
  std::shared_ptr<shared_pool> pool;

  /// The ranks' numbers in a larger group, for messages; none: as they are here.
  std::vector<rank_id> names = {};

  /// Results are fetched by devices, and so mapped in a way in which they can be pinned.
  bool results_for_devices = false;
};

/// Forms the group: every rank of the generation on this host calls it. Calls `exchange` once. A rank's memory can be
/// read by the others and written by none (results for devices: by agreement); it is gone when the last process that
/// has it is, whatever way they ended.
///
/// Fails with the exchange's error, `errc::mismatch` (a descriptor is of another generation or group), `errc::io_error`
/// (memory cannot be had), `errc::invalid_argument`.
[[nodiscard]] expected<std::unique_ptr<communicator>> make_shm_communicator(shm_options options,
                                                                            const descriptor_exchange& exchange);

} // namespace troupe::collectives
