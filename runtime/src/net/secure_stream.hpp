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

namespace troupe::runtime {

/// A blocking connection between two threads: mutual TLS, or unencrypted if the user asked for `--insecure`. A write
/// blocks until the other end reads, which is the back pressure. The loss of the peer's host is noticed within half a
/// minute. Used from one thread at a time.
class secure_stream {
 public:
  /// Connects and performs the handshake; a null context means unencrypted. Fails with `errc::unreachable` or
  /// `errc::not_authenticated`.
  [[nodiscard]] static expected<secure_stream> connect(const endpoint& where,
                                                       std::shared_ptr<const tls_context> context,
                                                       std::chrono::milliseconds limit, std::stop_token stop);

  /// Over an accepted socket that does not block and whose handshake is done; a null session means unencrypted.
  [[nodiscard]] static secure_stream over(collectives::unique_fd socket, std::unique_ptr<tls_session> session,
                                          std::stop_token stop);

  /// To wait for the next text elsewhere.
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

  /// Transfer all of `bytes`. Fail with `errc::unreachable` if the other end is gone and `errc::aborted` after a stop
  /// request.
  [[nodiscard]] expected<void> write(std::span<const std::byte> bytes);
  [[nodiscard]] expected<void> read(std::span<std::byte> bytes);

  /// Transfer one JSON object, preceded by its length. Reading fails with `errc::invalid_argument` for a text that is
  /// longer than `limit_bytes` or not a JSON object.
  [[nodiscard]] expected<void> write_text(const nlohmann::json& text);
  [[nodiscard]] expected<nlohmann::json> read_text(std::size_t limit_bytes);

  /// Replaces the stop token.
  void stop_with(std::stop_token stop) { stop_ = std::move(stop); }

 private:
  secure_stream(collectives::unique_fd socket, std::stop_token stop);

  [[nodiscard]] expected<void> shake_hands(std::shared_ptr<const tls_context> context, std::chrono::milliseconds limit);
  /// Waits until the socket is ready for `events`. Fails after `limit` and after a stop request.
  [[nodiscard]] expected<void> await(short events, std::chrono::steady_clock::time_point limit) const;
  template <class Plain, class Secure>
  [[nodiscard]] expected<void> transfer(std::size_t size_bytes, short events, Plain plain, Secure secure);

  collectives::unique_fd socket_;
  std::unique_ptr<tls_session> session_;
  std::stop_token stop_;
};

} // namespace troupe::runtime
