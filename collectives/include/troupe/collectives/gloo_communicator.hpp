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

/// A place in a group that talks over TCP.
struct gloo_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The name or address of this host under which the peers reach it, and to which the ports are bound. What Gloo
  /// sends is clear text, and it checks nobody: use loopback or a trusted network.
  std::string host = "127.0.0.1";

  /// The longest that one call may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that all peers' connections may take once addresses are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{30};

  /// Ends `make_gloo_communicator` early, once the exchange has returned.
  std::stop_token cancelled;
};

/// An all-gather of one blob per rank through the control plane: takes this rank's, gives all ranks' in rank order.
using address_exchange = std::function<expected<std::vector<std::string>>(std::string mine)>;

/// Forms the group: every rank of the generation calls it, and it returns once all are connected. Calls `exchange`
/// once. Every call opens new ports, so an earlier generation's member reaches nobody.
///
/// Fails with the exchange's error, `errc::mismatch` (a blob is of another generation or group), `errc::unreachable`
/// (the host name, or a peer), `errc::aborted` (cancelled), `errc::invalid_argument`.
///
/// Gloo writes to sockets whose peer may be gone: if the process still has the default reaction to SIGPIPE, which is to
/// die, it is set to ignore.
[[nodiscard]] expected<std::unique_ptr<communicator>> make_gloo_communicator(gloo_options options,
                                                                             const address_exchange& exchange);

} // namespace troupe::collectives
