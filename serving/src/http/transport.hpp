#pragma once

#include <troupe/error.hpp>
#include <troupe/serving/server.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

struct ssl_ctx_st;

namespace troupe::serving {

/// What an attempt to move bytes came to.
enum class io_state : std::uint8_t {
  done,
  /// Try again once the descriptor is readable.
  needs_input,
  /// Try again, with the same bytes, once the descriptor is writable.
  needs_output,
  /// The peer sends no more, or the connection is broken.
  ended,
};

struct io_result {
  io_state state;
  std::size_t bytes = 0;
};

/// The bytes of one connection. Never waits. Used by one thread. Owns the descriptor.
class transport {
 public:
  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  /// Before anything else, until it is done.
  [[nodiscard]] virtual io_state begin() = 0;

  /// At least one byte if it is done.
  [[nodiscard]] virtual io_result receive(std::span<char> target) = 0;

  /// At least one byte, of those given, if it is done.
  [[nodiscard]] virtual io_result send(std::string_view bytes) = 0;

  /// Says that nothing more is sent.
  virtual void end() = 0;

  [[nodiscard]] virtual int descriptor() const noexcept = 0;
};

/// The server's side of TLS.
class tls_context {
 public:
  /// Fails with `errc::not_authenticated` for files that cannot be used, a key that others may read, or one with a
  /// password.
  [[nodiscard]] static expected<tls_context> load(const listen_config& config);

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  struct deleter {
    void operator()(ssl_ctx_st* context) const noexcept;
  };
  std::unique_ptr<ssl_ctx_st, deleter> context_;
};

/// A transport over a connected socket, which is set not to block. `tls` is null for clear text, and outlives it. Null
/// without memory for TLS: then the socket stays the caller's.
[[nodiscard]] std::unique_ptr<transport> make_transport(int descriptor, const tls_context* tls);

} // namespace troupe::serving
