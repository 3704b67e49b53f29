#pragma once

#include <troupe/collectives/tcp_channel.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

namespace troupe::runtime {

/// The key that both ends of a TLS session have before it begins.
struct stream_key {
  collectives::tcp::session_key key;
  /// Says which kind of connection it is. Sent in clear text.
  std::string name;
};

/// A blocking connection between two threads: TLS 1.3 with a key that both ends have, or unencrypted if the user asked
/// for `--insecure`. A write blocks until the other end reads, which is the back pressure. The loss of the peer's host
/// is noticed within half a minute. Used from one thread at a time.
class secure_stream {
 public:
  /// Connects and performs the handshake; without a key the stream is not encrypted. Fails with `errc::unreachable` or
  /// `errc::not_authenticated`.
  [[nodiscard]] static expected<secure_stream> connect(const endpoint& where, const std::optional<stream_key>& key,
                                                       std::chrono::milliseconds limit, std::stop_token stop);

  /// Over an accepted connection whose handshake is done; `binding` is what `binding()` returns.
  [[nodiscard]] static secure_stream over(std::unique_ptr<collectives::tcp::channel> channel, std::string binding,
                                          std::stop_token stop);

  /// To wait for the next text elsewhere, unless it `has_unread`.
  [[nodiscard]] int fd() const noexcept { return channel_->fd(); }
  [[nodiscard]] bool has_unread() const noexcept { return channel_->has_unread(); }

  /// Transfer all of `bytes`. Fail with `errc::unreachable` if the other end is gone and `errc::aborted` after a stop
  /// request.
  [[nodiscard]] expected<void> write(std::span<const std::byte> bytes);
  [[nodiscard]] expected<void> read(std::span<std::byte> bytes);

  /// Transfer one JSON object, preceded by its length. Reading fails with `errc::invalid_argument` for a text that is
  /// longer than `limit_bytes` or not a JSON object.
  [[nodiscard]] expected<void> write_text(const nlohmann::json& text);
  [[nodiscard]] expected<nlohmann::json> read_text(std::size_t limit_bytes);

  /// A value that proofs over this stream include, so that they are invalid over any other: hexadecimal digits. Empty
  /// without encryption.
  [[nodiscard]] const std::string& binding() const noexcept { return binding_; }

  /// Replaces the stop token.
  void stop_with(std::stop_token stop) { stop_ = std::move(stop); }

 private:
  secure_stream(std::unique_ptr<collectives::tcp::channel> channel, std::string binding, std::stop_token stop);

  /// Makes the client's channel over a connected socket.
  [[nodiscard]] static expected<secure_stream> begin(collectives::unique_fd socket,
                                                     const std::optional<stream_key>& key,
                                                     std::chrono::milliseconds limit, std::stop_token stop);
  /// Calls `step` until it says that all is done, and waits for the socket whenever it cannot go on.
  template <class Step>
  [[nodiscard]] expected<void> repeat(short events, Step step);

  std::unique_ptr<collectives::tcp::channel> channel_;
  std::string binding_;
  std::stop_token stop_;
};

} // namespace troupe::runtime
