#pragma once

#include "net/tls_session.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stop_token>
#include <string>

namespace troupe::runtime {

/// A connection of two threads that wait for each other: mutual TLS, or plain where a person has spelled out
/// `--insecure`. What the other end does not take makes the writer wait: that is the back pressure. A peer whose host
/// is gone is noticed within half a minute. Used from one thread at a time.
class secure_stream {
 public:
  /// Connects and shakes hands; no context: in plain. Fails with `errc::unreachable` or `errc::not_authenticated`.
  [[nodiscard]] static expected<secure_stream> connect(const endpoint& where,
                                                       std::shared_ptr<const tls_context> context,
                                                       std::chrono::milliseconds limit, std::stop_token stop);

  /// Shakes hands with who has connected.
  [[nodiscard]] static expected<secure_stream> accept(collectives::unique_fd socket,
                                                      std::shared_ptr<const tls_context> context,
                                                      std::chrono::milliseconds limit, std::stop_token stop);

  /// All of `bytes`. Both fail with `errc::unreachable` when the other end is gone, and with `errc::aborted` when the
  /// stream is to stop.
  [[nodiscard]] expected<void> write(std::span<const std::byte> bytes);
  [[nodiscard]] expected<void> read(std::span<std::byte> bytes);

  /// One JSON text, with its length in front. Fails with `errc::invalid_argument` for one that is longer than
  /// `limit_bytes`, or none.
  [[nodiscard]] expected<void> write_text(const nlohmann::json& text);
  [[nodiscard]] expected<nlohmann::json> read_text(std::size_t limit_bytes);

  /// Calls stop from now on when this says so.
  void stop_with(std::stop_token stop) { stop_ = std::move(stop); }

 private:
  secure_stream(collectives::unique_fd socket, std::stop_token stop);

  [[nodiscard]] expected<void> shake_hands(std::shared_ptr<const tls_context> context, tls_role role,
                                           std::chrono::milliseconds limit);
  /// Until the socket is ready for `events`, the end of `limit`, or a stop.
  [[nodiscard]] expected<void> await(short events, std::chrono::steady_clock::time_point limit) const;
  template <class Plain, class Secure>
  [[nodiscard]] expected<void> transfer(std::size_t size_bytes, short events, Plain plain, Secure secure);

  collectives::unique_fd socket_;
  std::unique_ptr<tls_session> session_;
  std::stop_token stop_;
};

} // namespace troupe::runtime
