#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::runtime {

/// How many descriptors a worker can offer to the others on its node.
inline constexpr std::size_t max_offered_descriptors = 8;

/// A group of a run's workers. Groups are ordered as they are formed.
struct descriptor_group {
  generation_id generation;
  /// The number of a staging group beside the generation; 0: the generation itself.
  std::uint64_t staging = 0;

  auto operator<=>(const descriptor_group&) const = default;
};

/// "generation 4", or "staging group 7 of generation 4".
[[nodiscard]] std::string to_string(const descriptor_group& group);

/// The local rank that a worker claims in a group.
struct descriptor_offer {
  descriptor_group group;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;
};

/// Exchanges descriptors with the other workers of the run on the same node, through the node's `descriptor_broker`.
class descriptor_link {
 public:
  /// `socket` comes from `descriptor_broker::add`; in a worker process it is `unique_fd{descriptor_fd}`, which may be
  /// taken once. Sets it to close on exec.
  explicit descriptor_link(collectives::unique_fd socket) noexcept;

  /// Sends the descriptors `mine` to the other workers of a group on this node and waits for theirs. Returns one
  /// entry per local rank; the entry of the caller's own rank is empty. Received descriptors close on exec and refer to
  /// the same open files as the sender's. `mine` is borrowed until this returns. From any thread.
  ///
  /// All local ranks call it with the same world size, each once per group. Fails with `errc::mismatch` if their
  /// arguments contradict each other, `errc::stale_generation` if a later group has begun or the run is over,
  /// `errc::timed_out` after `limit`, `errc::aborted` as soon as `cancelled` is requested, `errc::node_lost` if the
  /// node is gone, and `errc::io_error` for a system error such as too many open files. A later group can be tried
  /// after any failure but `errc::node_lost`.
  [[nodiscard]] expected<std::vector<std::vector<collectives::unique_fd>>> exchange(const descriptor_offer& place,
                                                                                    std::span<const int> mine,
                                                                                    std::chrono::milliseconds limit,
                                                                                    const std::stop_token& cancelled);

 private:
  /// Ends the exchange of an earlier group. Fails if that of a later one has begun.
  [[nodiscard]] expected<std::stop_token> begin(const descriptor_group& group);

  /// Held during an exchange.
  std::mutex socket_mutex_;
  collectives::unique_fd socket_;

  /// For the rest.
  std::mutex mutex_;
  descriptor_group newest_;
  /// Stopped once a later group has begun.
  std::stop_source outdated_;
};

} // namespace troupe::runtime
