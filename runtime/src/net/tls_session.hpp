#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe::runtime {

/// What all connections made with the same keys share: the files are read once, here. Both ends must show a certificate
/// of the authority; TLS 1.3 and nothing older; no session is resumed, so each connection is verified anew.
class tls_context {
 public:
  /// Fails with `errc::not_authenticated` when a file cannot be used.
  [[nodiscard]] static expected<std::shared_ptr<const tls_context>> make(const tls_files& files);

 private:
  friend class tls_session;

  struct deleter {
    void operator()(SSL_CTX* x) const { SSL_CTX_free(x); }
    void operator()(BIO_METHOD* x) const { BIO_meth_free(x); }
  };

  std::unique_ptr<SSL_CTX, deleter> settings_;
  std::unique_ptr<BIO_METHOD, deleter> socket_;
};

enum class tls_role : std::uint8_t { client, server };

enum class tls_status : std::uint8_t {
  done,
  /// Nothing was done: call again, with the same arguments, when the socket is readable.
  wants_read,
  /// Likewise, when it is writable. Reading may want to write, and writing to read.
  wants_write,
  /// The end; `tls_session::reason` tells.
  failed,
};

/// TLS over one non-blocking socket, which it borrows. Neither blocks nor raises SIGPIPE. Not thread-safe, but it may
/// move from thread to thread: it leaves nothing behind in OpenSSL's error list, which belongs to the thread and is
/// shared by all its connections: what one left there would be taken for the failure of the next.
class tls_session {
 public:
  tls_session(std::shared_ptr<const tls_context> context, tls_role role, int fd);

  /// To be called until it is done, before all else. For a server that means that both have accepted the other's
  /// certificate; a client learns whether its own was accepted from the first `peek` or `read`.
  [[nodiscard]] tls_status handshake();

  /// Done as soon as there is something to read, and leaves it there.
  [[nodiscard]] tls_status peek();

  /// Reads between one byte and `size_bytes`, which must not be 0.
  [[nodiscard]] tls_status read(void* target, std::size_t size_bytes, std::size_t& read_bytes);

  /// Writes between one byte and `size_bytes`, which must not be 0.
  [[nodiscard]] tls_status write(const void* source, std::size_t size_bytes, std::size_t& written_bytes);

  /// Whether there are bytes to read that the socket does not know of any more: it will not become readable for them.
  [[nodiscard]] bool has_pending() const noexcept;

  /// Tells the other end that no more will come.
  void close();

  /// Why it has failed: `errc::not_authenticated` or `errc::unreachable`. The message tells what the other end did, as
  /// the rest of a sentence about it: "refused our certificate (unknown CA)".
  [[nodiscard]] const error& reason() const noexcept { return reason_; }

 private:
  struct deleter {
    void operator()(SSL* x) const { SSL_free(x); }
  };

  template <class Call>
  tls_status attempt(Call call);
  tls_status fail_with(error reason);
  error describe_failure() const;

  std::shared_ptr<const tls_context> context_;
  std::unique_ptr<SSL, deleter> ssl_;
  int fd_;
  bool broken_ = false;
  error reason_;
};

} // namespace troupe::runtime
