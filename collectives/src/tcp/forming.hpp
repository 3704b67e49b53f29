#pragma once

#include "tcp/address.hpp"
#include "tcp/channel.hpp"
#include "tcp/handshake.hpp"
#include "tcp/transport.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::collectives::tcp {

/// The connections that were refused while a group formed.
class refusals {
 public:
  void count(refusal why, const std::string& from) noexcept;

  [[nodiscard]] std::uint64_t total() const noexcept;
  [[nodiscard]] std::uint64_t of(refusal why) const noexcept { return counts_[static_cast<std::size_t>(why)]; }

 private:
  friend std::string to_string(const refusals& x);

  std::array<std::uint64_t, refusal_count> counts_{};
  std::string last_from_;
};

/// "refused 1003 connections: 1000 closed the connection during the handshake, 3 ...; the last from 10.0.0.7:4711".
[[nodiscard]] std::string to_string(const refusals& x);

/// The members of a group and where they listen, by rank; none for this rank and those it does not connect to.
using member_addresses = std::vector<std::optional<address>>;

/// Connects to all members in parallel, in one thread and one `poll`: the higher rank of a pair dials the lower one. A
/// connection to `own` has five seconds for the handshake. The number of connections in handshake is limited, per
/// address and in total; beyond the limit the oldest one is closed, so that silent strangers do not keep members out.
/// Members dial again after a failure, until the deadline, or until a member has been silent for `answer_deadline`.
[[nodiscard]] expected<std::vector<peer_channels>> form_group(const tcp_options& options, listener own,
                                                              const member_addresses& members);

} // namespace troupe::collectives::tcp
