#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

namespace troupe::runtime {

/// How many descriptors a worker can offer to the others of its node.
inline constexpr std::size_t max_offered_descriptors = 8;

/// A worker's way to the descriptors of the other workers of its run on the same node, through the node's
/// `descriptor_broker`. For one thread at a time.
class descriptor_link {
 public:
  /// `socket` comes from `descriptor_broker::add`: `unique_fd{descriptor_fd}` in a worker process, once. Keeps it from
  /// the programs that this one starts.
  explicit descriptor_link(collectives::unique_fd socket) noexcept;

  /// Gives the descriptors `mine` to the other workers of a generation on this node, and waits for theirs: one entry
  /// per local rank, the own one empty. Received descriptors close on exec and refer to the same open files as the
  /// peer's. `mine` is borrowed until this returns.
  ///
  /// All local ranks call it with the same world size, each once per generation. Fails with `errc::mismatch` when they
  /// contradict each other, `errc::stale_generation` when a newer generation has begun or the run is over,
  /// `errc::timed_out` after `limit`, `errc::aborted` at once when `cancelled` is, `errc::node_lost` when the node is
  /// gone, `errc::io_error` when the system refuses, as for too many open files. A later generation can be tried after
  /// any failure but `errc::node_lost`.
  [[nodiscard]] expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange(generation_id generation, std::uint32_t local_rank, std::uint32_t local_world_size,
           std::span<const int> mine, std::chrono::milliseconds limit, const std::stop_token& cancelled);

 private:
  collectives::unique_fd socket_;
};

} // namespace troupe::runtime
