#pragma once

#include <troupe/collectives/reduction.hpp>
#include <troupe/dtype.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::collectives {

/// The calls of a communicator. The numbers are on the wire: append only.
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

/// One call of a collective: what all ranks have to agree on, and no more. Trivially copyable, and compared between
/// processes.
struct call_record {
  static constexpr std::uint32_t every_peer = UINT32_MAX;

  /// Counts the calls of the whole group from 1; for `send` and `receive`, the messages of this rank to or from `peer`.
  std::uint64_t sequence = 0;

  /// Of this rank's data: what has to be equal on all ranks.
  std::uint64_t size_bytes = 0;

  /// Digest of whatever else has to be equal: layout, shards, ownership, divisor. 0 for calls without.
  std::uint64_t detail = 0;

  /// The root of a broadcast, the peer of a `send` or `receive`; `every_peer` for other calls.
  std::uint32_t peer = every_peer;

  call_kind kind = call_kind::none;

  /// 0 where the call moves bytes without looking at them.
  std::uint8_t type = 0;
  std::uint8_t op = 0;
  std::uint8_t reserved = 0;

  bool operator==(const call_record&) const = default;
};

/// "all_reduce #17 (sum of f32, 4096 bytes)".
[[nodiscard]] std::string to_string(const call_record& call);

/// Whether two ranks that both make a call of all with this number can go on: kind, type, operation, size, root and
/// detail are equal. The number itself is not looked at.
[[nodiscard]] bool fit_together(const call_record& left, const call_record& right) noexcept;

/// What two ranks that do not fit together are told: "rank 1 calls broadcast #4 (64 bytes, root 0) where rank 0 calls
/// all_reduce #4 (sum of f32, 64 bytes): ...".
[[nodiscard]] std::string describe_mismatch(rank_id left, const call_record& of_left, rank_id right,
                                            const call_record& of_right);

/// What a rank is doing, or did last: for people who look for the one that is late.
struct flight_record {
  struct peer_state {
    rank_id rank;
    /// Whether this rank has had from it all that the current call needs, as far as it knows.
    bool arrived = false;
    /// Where the peer stands, as it last said; `kind` is `none` if it did not.
    call_record last_call;
  };

  /// "shm", "gloo", "shm+gloo", "self".
  std::string_view transport;
  rank_id rank;
  std::uint32_t world_size = 0;
  generation_id generation;

  /// The call that is under way, or the last one.
  call_record call;
  bool is_under_way = false;

  /// How long it has been under way; after its end, how long it took. Over shared memory good to some milliseconds.
  std::chrono::nanoseconds duration{0};

  /// Every other rank, while a call is under way.
  std::vector<peer_state> peers;
};

/// One line for each rank that is waited for, beneath one for the call.
[[nodiscard]] std::string to_string(const flight_record& record);

} // namespace troupe::collectives
