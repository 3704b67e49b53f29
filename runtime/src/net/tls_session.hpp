#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// The settings shared by all connections with the same keys; reads the key files once. Both ends must present a
/// certificate of the authority. With keys of a cluster it must not be revoked, and its role must fit: servers accept
/// drivers, and clients accept nodes. Only TLS 1.3 is accepted. Sessions are
/// not resumed, so each connection is verified.
class tls_context {
 public:
  /// Fails with `errc::not_authenticated` for a file that cannot be used.
  [[nodiscard]] static expected<std::shared_ptr<const tls_context>> make(const tls_files& files);

  /// Whether the certificate with this serial number, in hexadecimal digits, was revoked when the files were read.
  [[nodiscard]] bool is_revoked(const std::string& serial) const { return revoked_.contains(serial); }

 private:
  friend class tls_session;

  struct deleter {
    void operator()(SSL_CTX* x) const { SSL_CTX_free(x); }
    void operator()(BIO_METHOD* x) const { BIO_meth_free(x); }
  };

  std::unique_ptr<SSL_CTX, deleter> settings_;
  std::unique_ptr<BIO_METHOD, deleter> socket_;
  key_scope scope_ = key_scope::loopback;
  std::set<std::string> revoked_;
};

/// The claims of the other end's certificate. Do not trust them before it is verified.
struct tls_peer {
  std::string name;
  /// Hexadecimal digits.
  std::string serial;
  certificate_role role = certificate_role::none;
};

enum class tls_role : std::uint8_t { client, server };

enum class tls_status : std::uint8_t {
  done,
  /// No progress: call again with the same arguments when the socket is readable.
  wants_read,
  /// Likewise when the socket is writable. A read may have to write, and a write to read.
  wants_write,
  /// The session is over; see `tls_session::reason`.
  failed,
};

/// TLS over one non-blocking socket, which it borrows. Neither blocks nor raises SIGPIPE. Not thread-safe, but may move
/// between threads. Leaves OpenSSL's error queue empty: the queue belongs to the thread, and an error left there would
/// be attributed to the next connection that uses the thread.
class tls_session {
 public:
  /// A client with keys of a cluster accepts only a certificate for `dialled`, a name or an address.
  tls_session(std::shared_ptr<const tls_context> context, tls_role role, int fd, std::string_view dialled = {});

  /// Call it first, until it is done. Then a server knows that both ends have accepted the other's certificate. A
  /// client learns from its first `peek` or `read` whether its own was accepted.
  [[nodiscard]] tls_status handshake();

  /// Done as soon as there is something to read, without consuming it.
  [[nodiscard]] tls_status peek();

  /// Reads between one byte and `size_bytes`, which must not be 0.
  [[nodiscard]] tls_status read(void* target, std::size_t size_bytes, std::size_t& read_bytes);

  /// Writes between one byte and `size_bytes`, which must not be 0.
  [[nodiscard]] tls_status write(const void* source, std::size_t size_bytes, std::size_t& written_bytes);

  /// Whether received bytes are buffered here. The socket does not become readable for them.
  [[nodiscard]] bool has_pending() const noexcept;

  /// Announces the end of the data to the other end.
  void close();

  /// Known as soon as the other end has presented a certificate.
  [[nodiscard]] const tls_peer& peer() const noexcept { return *peer_; }

  /// Whether the other end's certificate is for this name or address.
  [[nodiscard]] bool is_peer_named(std::string_view host) const;

  /// Why the session failed: `errc::not_authenticated` or `errc::unreachable`. The message continues a sentence about
  /// the other end: "refused our certificate (unknown CA)".
  [[nodiscard]] const error& reason() const noexcept { return reason_; }

 private:
  struct deleter {
    void operator()(SSL* x) const { SSL_free(x); }
  };

  template <class Call>
  tls_status attempt(Call call);
  tls_status fail_with(error reason);
  [[nodiscard]] bool expect_name(std::string_view dialled);
  [[nodiscard]] error describe_failure() const;
  [[nodiscard]] error describe_refusal(long verified) const;

  std::shared_ptr<const tls_context> context_;
  /// OpenSSL's callback writes to it: its address does not change.
  std::unique_ptr<tls_peer> peer_ = std::make_unique<tls_peer>();
  std::string dialled_;
  std::unique_ptr<SSL, deleter> ssl_;
  int fd_;
  bool broken_ = false;
  error reason_;
};

} // namespace troupe::runtime
