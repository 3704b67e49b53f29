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

/// How many descriptors a worker can offer to the others on its node.
inline constexpr std::size_t max_offered_descriptors = 8;

/// Exchanges descriptors with the other workers of the run on the same node, through the node's `descriptor_broker`.
/// Used from one thread at a time.
class descriptor_link {
 public:
  /// `socket` comes from `descriptor_broker::add`; in a worker process it is `unique_fd{descriptor_fd}`, which may be
  /// taken once. Sets it to close on exec.
  explicit descriptor_link(collectives::unique_fd socket) noexcept;

  /// Sends the descriptors `mine` to the other workers of a generation on this node and waits for theirs. Returns one
  /// entry per local rank; the entry of the caller's own rank is empty. Received descriptors close on exec and refer to
  /// the same open files as the sender's. `mine` is borrowed until this returns.
  ///
  /// All local ranks call it with the same world size, each once per generation. Fails with `errc::mismatch` if their
  /// arguments contradict each other, `errc::stale_generation` if a newer generation has begun or the run is over,
  /// `errc::timed_out` after `limit`, `errc::aborted` as soon as `cancelled` is requested, `errc::node_lost` if the
  /// node is gone, and `errc::io_error` for a system error such as too many open files. A later generation can be tried
  /// after any failure but `errc::node_lost`.
  [[nodiscard]] expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange(generation_id generation, std::uint32_t local_rank, std::uint32_t local_world_size,
           std::span<const int> mine, std::chrono::milliseconds limit, const std::stop_token& cancelled);

 private:
  collectives::unique_fd socket_;
};

} // namespace troupe::runtime
