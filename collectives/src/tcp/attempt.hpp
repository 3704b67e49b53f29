#pragma once

#include "tcp/address.hpp"
#include "tcp/channel.hpp"
#include "tcp/handshake.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/collectives/unproven_peers.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::collectives::tcp {

/// A connection that is being made: TCP's connect, the proof of the secret, TLS. Reads one message at a time and never
/// beyond it. The owner polls `fd`, for writing if `wants_to_write`, and calls `advance`.
class attempt {
 public:
  using clock = std::chrono::steady_clock;

  /// The connection stands.
  struct ready {
    connection_name name;
    std::unique_ptr<channel> stream;
  };
  struct failed {
    refusal why;
    std::string text;
    /// The system's error, if the peer did not answer.
    int system_code = 0;
  };
  /// Empty: the attempt continues.
  using outcome = std::variant<std::monostate, ready, failed>;

  /// Why a peer that has proved that it belongs to the run is not taken all the same.
  using objection = std::function<refusal(const connection_name&)>;

  /// The data shared by all attempts of a group, which must outlive them.
  struct group {
    const tcp_options& options;
    const group_identity& identity;
    /// Asked for connections that were accepted.
    objection objects;
  };

  /// This rank dials: `socket` is connecting to `peer`.
  attempt(const group& in, unique_fd socket, const address& peer, const connection_name& name,
          clock::time_point ends_at);
  /// This rank has accepted `socket`, from a stranger so far.
  attempt(const group& in, unique_fd socket, const address& peer, unproven_peers::ticket place,
          clock::time_point ends_at);

  [[nodiscard]] int fd() const;
  [[nodiscard]] bool wants_to_write() const noexcept { return wants_to_write_; }
  [[nodiscard]] clock::time_point ends_at() const noexcept { return ends_at_; }
  [[nodiscard]] const address& peer() const noexcept { return peer_; }
  /// Of a connection that this rank dials: the member, and for what.
  [[nodiscard]] const std::optional<connection_name>& dialled() const noexcept { return dialled_; }
  /// Whether the peer's system has taken the connection.
  [[nodiscard]] bool is_connected() const noexcept { return !std::holds_alternative<connecting>(stage_); }
  /// Of a connection that was accepted: its place among the strangers.
  [[nodiscard]] const std::optional<unproven_peers::ticket>& place() const noexcept { return place_; }
  /// Whether the peer has proved that it belongs to the run.
  [[nodiscard]] bool is_proven() const noexcept { return name_.has_value(); }

  /// Its descriptor is ready.
  [[nodiscard]] outcome advance();

 private:
  struct connecting {};
  using tls_handshake = std::unique_ptr<tls_channel>;

  std::optional<failed> finish_connecting();
  [[nodiscard]] bool flush();
  [[nodiscard]] outcome read_message();
  [[nodiscard]] outcome take(handshake_step step);
  [[nodiscard]] outcome shake_hands(tls_handshake& tls);

  const group& group_;
  /// Given to the stage once that is TLS.
  unique_fd socket_;
  address peer_;
  std::variant<connecting, dialling_handshake, accepting_handshake, tls_handshake> stage_;
  clock::time_point ends_at_;
  std::optional<connection_name> dialled_;
  std::optional<unproven_peers::ticket> place_;
  /// Once the peer has proved itself.
  std::optional<connection_name> name_;
  std::vector<std::byte> incoming_;
  std::vector<std::byte> outgoing_;
  bool wants_to_write_ = false;
};

} // namespace troupe::collectives::tcp
