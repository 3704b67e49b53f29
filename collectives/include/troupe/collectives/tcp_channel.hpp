#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/uio.h>
#include <utility>

/// Bytes between two processes of a run: as they are, or through TLS with a key that both have. For the transport
/// between hosts and for streams of checkpoint parts.
namespace troupe::collectives::tcp {

/// The result of a read or write.
struct transferred {
  enum class state : std::uint8_t {
    /// More may be possible now.
    open,
    /// Nothing more until the socket is ready.
    would_block,
    /// The peer has closed the connection, or it has failed.
    closed,
  };

  std::size_t bytes = 0;
  state after = state::open;
};

/// A stream of bytes to one peer over a non-blocking socket, in clear text or through TLS. One thread at a time.
class channel {
 public:
  channel() = default;
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  virtual ~channel() = default;

  /// Writes from the start of the buffers, in order. With TLS, what is written may still be in the channel's memory.
  [[nodiscard]] virtual transferred write(std::span<const iovec> buffers) = 0;

  /// Reads into the buffers, in order.
  [[nodiscard]] virtual transferred read(std::span<const iovec> buffers) = 0;

  /// Whether the channel holds bytes of the peer: the socket does not become readable for them.
  [[nodiscard]] virtual bool has_unread() const noexcept = 0;

  /// Whether the channel holds bytes that the socket has not taken.
  [[nodiscard]] virtual bool has_unsent() const noexcept = 0;

  /// Passes them on.
  [[nodiscard]] virtual transferred flush() = 0;

  /// The socket, for `poll`.
  [[nodiscard]] virtual int fd() const noexcept = 0;

  /// Why the channel is closed.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 protected:
  transferred closed_because(std::string why) {
    if (why_.empty())
      why_ = std::move(why);
    return {0, transferred::state::closed};
  }

 private:
  std::string why_;
};

[[nodiscard]] std::unique_ptr<channel> make_plain_channel(unique_fd socket);

enum class tls_side : std::uint8_t { client, server };

/// The key of one connection's TLS session.
using session_key = std::array<std::byte, 32>;

/// A value known only to the two ends of one TLS session ("EXPORTER-Channel-Binding", RFC 9266). A proof that includes
/// it is invalid in any other session.
using session_binding = std::array<std::byte, 32>;

/// TLS 1.3 without certificates: both sides have the session's key, and the name says which connection it is.
class tls_session {
 public:
  enum class state : std::uint8_t { wants_read, wants_write, done, failed };

  virtual ~tls_session() = default;

  /// Continues the handshake.
  [[nodiscard]] virtual state shake_hands() = 0;
  [[nodiscard]] virtual std::string why() const = 0;

  /// Known once the handshake is done.
  [[nodiscard]] virtual const session_binding& binding() const noexcept = 0;
};

/// A channel whose handshake must be completed with `shake_hands` before any read or write.
class tls_channel : public channel, public tls_session {};

/// Borrows nothing. Fails with `errc::internal` if OpenSSL cannot provide TLS 1.3.
[[nodiscard]] expected<std::unique_ptr<tls_channel>> make_tls_channel(unique_fd socket, tls_side side,
                                                                      const session_key& key, std::string name);

} // namespace troupe::collectives::tcp
