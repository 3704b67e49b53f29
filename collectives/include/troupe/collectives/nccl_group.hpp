#pragma once

#include <troupe/collectives/address_exchange.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/hang_policy.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

namespace troupe::collectives {

/// This rank's place in a group that communicates over NCCL.
struct nccl_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The longest that one reduction may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that forming the group may take once the ids are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{60};

  /// The longest that shrinking the old group may take before a new one is formed from a new id. If it fails on one
  /// rank, the others wait this long.
  std::chrono::milliseconds shrink_deadline = std::chrono::seconds{5};

  /// Cancels `make_nccl_group` once an exchange has returned.
  std::stop_token cancelled = {};

  hang_policy on_hang = {};

  /// Receives a message when forming the group falls back to another way; may be empty.
  std::function<void(const std::string&)> note = {};

  /// The previous generation's group, if this process was in it: finished, and usually failed or aborted. If all ranks
  /// pass theirs, in the same order, and NCCL is 2.28.7 or later, the new group is the old one shrunk by the lost
  /// ranks. Otherwise, and if shrinking fails, it is formed from a new id.
  std::unique_ptr<device_group> predecessor = {};
};

/// "NCCL 2.28.9". Opens libnccl.so.2 on the first call. Fails with `errc::unsatisfiable` if there is none, or if it is
/// older than 2.14 and has no non-blocking communicators, which can be aborted.
[[nodiscard]] expected<std::string> find_nccl();

/// Forms the group. Every rank of the generation calls it, each with its own GPU; it returns once all are connected.
/// Calls `exchange` twice. NCCL sends clear text between hosts and does not authenticate peers. It listens on the
/// interfaces that NCCL_SOCKET_IFNAME names, or chooses one.
///
/// Fails with the exchange's error, `errc::unsatisfiable` (no NCCL), `errc::invalid_argument` (two ranks on one GPU),
/// `errc::mismatch` (a blob is from another generation or group), `errc::timed_out`, `errc::aborted` (cancelled, or
/// rank 0 failed), `errc::unreachable` (a connection failed, for example because a peer died), `errc::device_error`.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_nccl_group(std::shared_ptr<device> where, nccl_options options, const address_exchange& exchange);

} // namespace troupe::collectives
