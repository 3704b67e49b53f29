#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <sys/socket.h>
#include <vector>

namespace troupe::collectives {

/// The host that a connection comes from, without its port. An IPv4 address is the same one within an IPv6 address.
class peer_source {
 public:
  peer_source() = default;
  explicit peer_source(const sockaddr* from) noexcept;
  /// Of a connected socket. All sockets without a peer have the same one.
  [[nodiscard]] static peer_source of(int socket) noexcept;

  auto operator<=>(const peer_source&) const = default;

 private:
  std::array<std::uint8_t, 16> host_{};
};

/// The limits of unauthenticated connections to a listener.
struct unproven_limits {
  std::size_t in_all = 128;
  std::size_t of_source = 64;
  /// How long a connection may take to prove itself.
  std::chrono::milliseconds time{5'000};
};

/// The unauthenticated connections to a listener, and which of them to close. The listener owns the connections and
/// closes those that are named here. Not thread-safe.
///
/// A new connection is always admitted, at the expense of older ones, so silent peers cannot keep others out. If its
/// source has too many connections, the oldest of that source is closed; if there are too many in total, the oldest of
/// the source that has the most.
class unproven_peers {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  enum class ticket : std::uint64_t {};

  struct admission {
    ticket added;
    std::optional<ticket> crowded_out;
  };

  explicit unproven_peers(unproven_limits limits) : limits_(limits) {}

  [[nodiscard]] admission admit(const peer_source& from, time_point now);

  /// The connection is authenticated, or has ended. No effect for an unknown ticket.
  void remove(ticket x);

  /// The oldest of the source that has the most, for a listener that has no descriptor left.
  [[nodiscard]] std::optional<ticket> take_oldest();

  /// The connections whose time is over.
  [[nodiscard]] std::vector<ticket> take_late(time_point now);
  [[nodiscard]] std::optional<time_point> next_deadline() const;

  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size(); }
  [[nodiscard]] const unproven_limits& limits() const noexcept { return limits_; }

 private:
  struct entry {
    peer_source from;
    time_point deadline;
  };

  std::optional<ticket> take_oldest_of(const peer_source& source);

  unproven_limits limits_;
  std::uint64_t next_ = 0;
  /// In order of arrival, which is also that of the deadlines.
  std::map<ticket, entry> waiting_;
  std::map<peer_source, std::size_t> counts_;
};

} // namespace troupe::collectives
