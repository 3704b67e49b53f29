#pragma once

#include "net/tls_session.hpp"

#include <cstddef>
#include <memory>

namespace troupe::runtime {

/// Bytes over a non-blocking socket, which it borrows: through TLS or, if the user asked for `--insecure`, as they are.
/// Its functions do what those of `tls_session` do.
class byte_channel {
 public:
  /// Of an accepted connection; a null context means unencrypted. Takes memory for TLS once the peer has sent
  /// something.
  byte_channel(std::shared_ptr<const tls_context> context, int fd) noexcept : context_(std::move(context)), fd_(fd) {}
  /// Of a connection whose handshake is done; a null session means unencrypted.
  byte_channel(std::unique_ptr<tls_session> session, int fd) noexcept : session_(std::move(session)), fd_(fd) {}

  /// The server's side. Unencrypted, it is done once the peer has sent something.
  [[nodiscard]] tls_status handshake();
  [[nodiscard]] tls_status read(void* target, std::size_t size_bytes, std::size_t& read_bytes);
  [[nodiscard]] tls_status write(const void* source, std::size_t size_bytes, std::size_t& written_bytes);
  [[nodiscard]] bool is_encrypted() const noexcept { return context_ || session_; }
  [[nodiscard]] bool has_pending() const noexcept { return session_ && session_->has_pending(); }
  void close();
  /// Null if unencrypted, or if the peer has sent nothing yet.
  [[nodiscard]] const tls_session* session() const noexcept { return session_.get(); }

 private:
  std::shared_ptr<const tls_context> context_;
  std::unique_ptr<tls_session> session_;
  int fd_;
};

} // namespace troupe::runtime
