#pragma once

#include <troupe/collectives/address_exchange.hpp>
#include <troupe/collectives/communicator.hpp>
#include <troupe/error.hpp>
#include <troupe/port_range.hpp>
#include <troupe/types.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::collectives {

/// The key of a run, known to its workers only. All connections of its groups are authenticated with keys derived from
/// it.
using run_secret = std::array<std::byte, 32>;

/// This rank's place in a group that communicates over TCP.
struct tcp_options {
  rank_id rank;
  std::uint32_t world_size = 1;
  generation_id generation;

  /// The name or address at which peers reach this host; the port is bound to it.
  std::string host = "127.0.0.1";

  /// The port to listen at while the group forms, one per group; without a range the system chooses.
  std::optional<port_range> ports;

  /// Equal on all ranks. Peers that do not prove that they know it get no further than the handshake. The default, all
  /// zeros, protects against accidents only.
  run_secret secret{};

  /// Which group of the run this is, if it has several at a time, and the run's id. Equal on all ranks.
  std::string tag;

  /// TLS 1.3 with a key derived from the secret. Without it, peers are authenticated and the data is clear text. Equal
  /// on all ranks.
  bool encrypted = true;

  /// The longest that one call may take.
  std::chrono::milliseconds deadline = std::chrono::seconds{300};

  /// The longest that connecting to all peers may take once the addresses are exchanged.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds{30};

  /// A peer that does not answer for this long is unreachable: calls that need it fail, and so does connecting to it.
  /// Unless they are frozen, processes answer even while their callers are busy. None: only the deadlines apply.
  std::optional<std::chrono::milliseconds> answer_deadline;

  /// Cancels `make_tcp_communicator` once the exchange has returned.
  std::stop_token cancelled;

  /// Gets one line at the end of forming if connections of strangers were refused. Called by the forming thread; may be
  /// empty.
  std::function<void(std::string_view)> report;

  /// Gets the peers that forming has failed to connect to. Called by the forming thread; may be empty.
  std::function<void(const std::vector<rank_id>&)> report_unreachable;
};

/// Forms the group. Every rank of the generation calls it; it returns once all are connected. Calls `exchange` once.
/// Listens at one port, from before the exchange until all have connected. Refuses connections of others, which do not
/// delay the group.
///
/// Fails with the exchange's error, `errc::mismatch` (a blob is from another generation or group, or a rank has other
/// options), `errc::unreachable` (the host name, or peers, which the message names with their addresses and reasons),
/// `errc::aborted` (cancelled), `errc::unsatisfiable` (the process may not open so many connections),
/// `errc::invalid_argument`.
[[nodiscard]] expected<std::unique_ptr<communicator>> make_tcp_communicator(const tcp_options& options,
                                                                            const address_exchange& exchange);

} // namespace troupe::collectives
