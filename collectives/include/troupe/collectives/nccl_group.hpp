#pragma once

#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/gloo_communicator.hpp>
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

/// A place in a group that talks over NCCL.
struct nccl_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The longest that one reduction may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that the group's forming may take once ids are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{60};

  /// The longest that a group may take to shrink before it is formed from a new id. What fails on one rank costs the
  /// others this long.
  std::chrono::milliseconds shrink_deadline = std::chrono::seconds{5};

  /// Ends `make_nccl_group` early, once an exchange has returned.
  std::stop_token cancelled = {};

  hang_policy on_hang = {};

  /// Told, in words, what was tried in vain and is done in another way; none: nobody is.
  std::function<void(const std::string&)> note = {};

  /// The group of the generation before, if this process was in it: finished, mostly failed or aborted. If all ranks
  /// hand in theirs, in the same order, and NCCL is 2.28.7 or later, the new one is the old one without those that are
  /// gone; if that fails, and else, it is formed from a new id.
  std::unique_ptr<device_group> predecessor = {};
};

/// "NCCL 2.28.9". Opens libnccl.so.2 when it is first called. Fails with `errc::unsatisfiable` where there is none, or
/// one before 2.14, which has no calls that can be given up.
[[nodiscard]] expected<std::string> find_nccl();

/// Forms the group: every rank of the generation calls it, each with a GPU of its own, and it returns once all are
/// connected. Calls `exchange` twice. What NCCL sends off a host is clear text, and it checks nobody; it listens on the
/// interfaces that NCCL_SOCKET_IFNAME names, or on one that it picks.
///
/// Fails with the exchange's error, `errc::unsatisfiable` (no NCCL), `errc::invalid_argument` (two ranks on one GPU),
/// `errc::mismatch` (a blob is of another generation or group), `errc::timed_out`, `errc::aborted` (cancelled, or rank
/// 0 has failed), `errc::unreachable` (a connection fails, as when a peer dies meanwhile), `errc::device_error`.
[[nodiscard]] expected<std::unique_ptr<device_group>>
make_nccl_group(std::shared_ptr<device> where, nccl_options options, const address_exchange& exchange);

} // namespace troupe::collectives
