#pragma once

#include "tcp/handshake.hpp"
#include "tcp/tls_records.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <sys/uio.h>

namespace troupe::collectives::tcp {

/// What a read or write achieved.
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

/// A stream of bytes to one peer over a socket that does not block: as they are, or through TLS. One thread at a time.
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

/// TLS 1.3 without certificates: both sides have the session's key, and the name says which connection it is.
class tls_session {
 public:
  enum class state : std::uint8_t { wants_read, wants_write, done, failed };

  virtual ~tls_session() = default;

  /// Continues the handshake.
  [[nodiscard]] virtual state shake_hands() = 0;
  [[nodiscard]] virtual std::string why() const = 0;
};

/// A channel whose handshake is to be completed, by `shake_hands`, before anything is read or written.
class tls_channel : public channel, public tls_session {};

/// Borrows nothing. Each direction gets a new key after `records_per_key`. Fails with `errc::internal` if OpenSSL
/// cannot provide TLS 1.3.
[[nodiscard]] expected<std::unique_ptr<tls_channel>>
make_tls_channel(unique_fd socket, tls_side side, const session_key& key, std::string name,
                 std::uint64_t records_per_key = record_key::limit);

} // namespace troupe::collectives::tcp
