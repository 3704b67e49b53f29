#pragma once

#include <troupe/collectives/communicator.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::collectives {

/// This rank's place in a group that communicates over TCP.
struct gloo_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The name or address at which peers reach this host; ports are bound to it. Gloo sends clear text and authenticates
  /// nobody: use loopback or a trusted network.
  std::string host = "127.0.0.1";

  /// The longest that one call may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that connecting to all peers may take once the addresses are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{30};

  /// Cancels `make_gloo_communicator` once the exchange has returned.
  std::stop_token cancelled;
};

/// An all-gather of one blob per rank over the control plane: takes this rank's blob, returns all blobs in rank order.
using address_exchange = std::function<expected<std::vector<std::string>>(std::string mine)>;

/// Forms the group. Every rank of the generation calls it; it returns once all are connected. Calls `exchange` once.
/// Each call opens new ports, so members of earlier generations cannot connect.
///
/// Fails with the exchange's error, `errc::mismatch` (a blob is from another generation or group), `errc::unreachable`
/// (the host name, or a peer), `errc::aborted` (cancelled), `errc::invalid_argument`.
///
/// Gloo writes to sockets whose peer may be gone. If SIGPIPE still has its default action, which terminates the
/// process, this sets it to ignore.
[[nodiscard]] expected<std::unique_ptr<communicator>> make_gloo_communicator(gloo_options options,
                                                                             const address_exchange& exchange);

} // namespace troupe::collectives
