#pragma once

#include "net/parts/part_stream.hpp"

#include <troupe/actors/decisions/join_handshake.hpp>

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// A connection to the driver until the worker has proved that it belongs to the run: the TLS handshake, then the first
/// three texts (part_stream.hpp). Nothing blocks, and of what the peer sends no more than the next text is read, at
/// most `greeting_limit_bytes`. The owner polls `fd` for what `wants_to_write` says, and calls `advance`.
class part_greeting {
 public:
  struct refused {};
  /// Empty: the greeting continues. A stream: the worker is authenticated.
  using outcome = std::variant<std::monostate, refused, secure_stream>;

  /// `secret` is borrowed.
  part_greeting(collectives::unique_fd socket, const part_stream_secret& secret)
      : socket_(std::move(socket)), secret_(secret) {}

  [[nodiscard]] int fd() const noexcept { return channel_ ? channel_->fd() : socket_.get(); }
  [[nodiscard]] bool wants_to_write() const noexcept { return wants_to_write_; }

  /// Its descriptor is ready.
  [[nodiscard]] outcome advance(const std::stop_token& stop);

 private:
  [[nodiscard]] bool make_channel();
  [[nodiscard]] bool shake_hands();
  [[nodiscard]] bool flush();
  [[nodiscard]] bool receive();
  [[nodiscard]] bool answer_hello(const nlohmann::json& hello);
  [[nodiscard]] bool accepts(const nlohmann::json& proof);
  void send(const nlohmann::json& text);

  /// Until the peer has sent something: only then is memory for TLS taken.
  collectives::unique_fd socket_;
  const part_stream_secret& secret_;
  std::unique_ptr<collectives::tcp::channel> channel_;
  /// The same, until the TLS handshake is done.
  collectives::tcp::tls_session* session_ = nullptr;
  std::string binding_;
  /// Once the hello has come.
  std::optional<actors::join_handshake> handshake_;
  join_request request_;
  std::vector<std::byte> incoming_;
  std::size_t wanted_bytes_ = 0;
  std::vector<std::byte> outgoing_;
  bool wants_to_write_ = false;
};

} // namespace troupe::runtime
