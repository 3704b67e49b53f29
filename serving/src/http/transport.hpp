#pragma once

#include "decisions/time_point.hpp"

#include <troupe/error.hpp>
#include <troupe/serving/server.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

struct ssl_ctx_st;

namespace troupe::serving {

/// Waits until a descriptor is ready for `events` (of poll); false at the deadline.
[[nodiscard]] bool await_ready(int descriptor, short events, time_point deadline);

/// The bytes of one connection. Used by one thread. Owns the descriptor.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// Before anything else; false if the peer does not speak the protocol in time.
  [[nodiscard]] virtual bool begin(time_point deadline) = 0;

  /// Returns at least one byte; 0 if the peer sends no more, if the connection is broken, and at the deadline.
  [[nodiscard]] virtual std::size_t receive(std::span<char> target, time_point deadline) = 0;

  /// Sends all; false if the connection is broken, and at the deadline.
  [[nodiscard]] virtual bool send(std::string_view bytes, time_point deadline) = 0;

  /// Says that nothing more is sent.
  virtual void end() = 0;

  /// Whether bytes have been received below this class, so that poll does not see them.
  [[nodiscard]] virtual bool has_pending() const = 0;

  [[nodiscard]] virtual int descriptor() const noexcept = 0;
};

/// The server's side of TLS.
class tls_context {
 public:
  /// Fails with `errc::not_authenticated` for files that cannot be used, or a key that others may read.
  [[nodiscard]] static expected<tls_context> load(const listen_config& config);

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  struct deleter {
    void operator()(ssl_ctx_st* context) const noexcept;
  };
  std::unique_ptr<ssl_ctx_st, deleter> context_;
};

/// A transport over a connected socket, which is set not to block. `tls` is null for clear text, and outlives it.
[[nodiscard]] std::unique_ptr<transport> make_transport(int descriptor, const tls_context* tls);

} // namespace troupe::serving
