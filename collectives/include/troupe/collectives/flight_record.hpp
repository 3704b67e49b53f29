#pragma once

#include <troupe/collectives/reduction.hpp>
#include <troupe/dtype.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::collectives {

/// The calls of a communicator. The numbers are part of the wire format: append only.
enum class call_kind : std::uint8_t {
  none = 0,
  all_reduce = 1,
  reduce_scatter = 2,
  all_gather = 3,
  all_gather_bytes = 4,
  broadcast = 5,
  all_to_all = 6,
  barrier = 7,
  send = 8,
  receive = 9,
  reduce_leaves = 10,
  all_reduce_fast = 11,
};

[[nodiscard]] std::string_view to_string(call_kind kind) noexcept;

/// Whether it is a call of two ranks, and not a collective one.
[[nodiscard]] constexpr bool is_pairwise(call_kind kind) noexcept {
  return kind == call_kind::send || kind == call_kind::receive;
}

/// One call, reduced to what all ranks must agree on. Trivially copyable; compared between processes.
struct call_record {
  static constexpr std::uint32_t every_peer = UINT32_MAX;

  /// The number of the call among the group's collective calls, from 1. For `send` and `receive`, the number of the
  /// message from this rank to `peer` or back.
  std::uint64_t sequence = 0;

  /// The size of this rank's data, as far as it must be equal on all ranks.
  std::uint64_t size_bytes = 0;

  /// A digest of everything else that must be equal: layout, shards, ownership, divisor. 0 for calls without.
  std::uint64_t detail = 0;

  /// The root of a broadcast or the peer of a `send` or `receive`; `every_peer` for other calls.
  std::uint32_t peer = every_peer;

  call_kind kind = call_kind::none;

  /// 0 if the call moves bytes without interpreting them.
  std::uint8_t type = 0;
  std::uint8_t op = 0;
  std::uint8_t reserved = 0;

  bool operator==(const call_record&) const = default;
};

/// "all_reduce #17 (sum of f32, 4096 bytes)".
[[nodiscard]] std::string to_string(const call_record& call);

/// Whether two collective calls with the same number match: kind, type, operation, size, root and detail are equal.
/// Does not compare the numbers.
[[nodiscard]] bool fit_together(const call_record& left, const call_record& right) noexcept;

/// The error for two ranks whose calls do not match: "rank 1 calls broadcast #4 (64 bytes, root 0) where rank 0 calls
/// all_reduce #4 (sum of f32, 64 bytes): ...".
[[nodiscard]] std::string describe_mismatch(rank_id left, const call_record& of_left, rank_id right,
                                            const call_record& of_right);

/// The current or last call of a rank; helps to find the slow rank.
struct flight_record {
  struct peer_state {
    rank_id rank;
    /// Whether the current call needs nothing more from this peer, as far as this rank knows.
    bool arrived = false;
    /// The peer's last reported call; its `kind` is `none` if the peer has reported none.
    call_record last_call;
  };

  /// "shm", "tcp", "shm+tcp", "self".
  std::string_view transport;
  rank_id rank;
  std::uint32_t world_size = 0;
  generation_id generation;

  /// The running call, or the last one.
  call_record call;
  bool is_under_way = false;

  /// The time since the call started, or how long it took. Over shared memory accurate to a few milliseconds.
  std::chrono::nanoseconds duration{0};

  /// Every other rank, while a call is running.
  std::vector<peer_state> peers;
};

/// A line for the call, followed by a line for each rank that it waits for.
[[nodiscard]] std::string to_string(const flight_record& record);

} // namespace troupe::collectives
