#include "http/transport.hpp"

#include <troupe/serialization/files/private_file.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace troupe::serving {

namespace {

/// Owns a socket until it is closed.
class socket_transport : public transport {
 public:
  explicit socket_transport(int descriptor) : descriptor_(descriptor) {}
  ~socket_transport() override { ::close(descriptor_); }

  int descriptor() const noexcept final { return descriptor_; }

 private:
  int descriptor_;
};

class plain_transport final : public socket_transport {
 public:
  using socket_transport::socket_transport;

  io_state begin() override { return io_state::done; }

  io_result receive(std::span<char> target) override {
    const auto count = repeat([&] { return ::recv(descriptor(), target.data(), target.size(), 0); });
    return count == 0 ? io_result{io_state::ended} : result_of(count, io_state::needs_input);
  }

  io_result send(std::string_view bytes) override {
    const auto count = repeat([&] { return ::send(descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    return result_of(count, io_state::needs_output);
  }

  void end() override { ::shutdown(descriptor(), SHUT_WR); }

 private:
  template <class Call>
  static ssize_t repeat(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR)
      result = call();
    return result;
  }

  static io_result result_of(ssize_t count, io_state wait) {
    if (count >= 0)
      return {io_state::done, static_cast<std::size_t>(count)};
    return {errno == EAGAIN || errno == EWOULDBLOCK ? wait : io_state::ended};
  }
};

struct session_deleter {
  void operator()(SSL* session) const noexcept { SSL_free(session); }
};
using session_ptr = std::unique_ptr<SSL, session_deleter>;

class tls_transport final : public socket_transport {
 public:
  tls_transport(int descriptor, session_ptr session) : socket_transport(descriptor), session_(std::move(session)) {}

  io_state begin() override {
    return attempt([this] { return SSL_accept(session_.get()); }).state;
  }

  io_result receive(std::span<char> target) override {
    const auto size = static_cast<int>(std::min<std::size_t>(target.size(), std::numeric_limits<int>::max()));
    return attempt([&] { return SSL_read(session_.get(), target.data(), size); });
  }

  io_result send(std::string_view bytes) override {
    const auto size = static_cast<int>(std::min<std::size_t>(bytes.size(), std::size_t{1} << 20));
    return attempt([&] { return SSL_write(session_.get(), bytes.data(), size); });
  }

  void end() override {
    if (!is_broken_)
      (void)SSL_shutdown(session_.get());
    ERR_clear_error();
    ::shutdown(descriptor(), SHUT_WR);
  }

 private:
  template <class Call>
  io_result attempt(Call call) {
    // What other connections of this thread have left would be taken for this one's.
    ERR_clear_error();
    const auto result = call();
    if (result > 0)
      return {io_state::done, static_cast<std::size_t>(result)};
    const auto reason = SSL_get_error(session_.get(), result);
    ERR_clear_error();
    if (reason == SSL_ERROR_WANT_READ)
      return {io_state::needs_input};
    if (reason == SSL_ERROR_WANT_WRITE)
      return {io_state::needs_output};
    is_broken_ = reason != SSL_ERROR_ZERO_RETURN;
    return {io_state::ended};
  }

  session_ptr session_;
  /// After which nothing may be called but SSL_free.
  bool is_broken_ = false;
};

/// Instead of the one of OpenSSL, which asks at the terminal.
int no_password(char*, int, int, void*) {
  return 0;
}

error openssl_error(const std::string& what) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  ERR_clear_error();
  return {errc::not_authenticated, fmt::format("{}: {}", what, text.data())};
}

} // namespace

void tls_context::deleter::operator()(ssl_ctx_st* context) const noexcept {
  SSL_CTX_free(context);
}

expected<tls_context> tls_context::load(const listen_config& config) {
  TROUPE_TRY(serialization::check_private(config.key));
  tls_context result;
  result.context_.reset(SSL_CTX_new(TLS_server_method()));
  auto* context = result.context_.get();
  if (context == nullptr)
    return fail(openssl_error("TLS"));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  if (SSL_CTX_use_certificate_chain_file(context, config.certificate.c_str()) != 1)
    return fail(openssl_error(config.certificate.string()));
  SSL_CTX_set_default_passwd_cb(context, &no_password);
  if (SSL_CTX_use_PrivateKey_file(context, config.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(openssl_error(fmt::format("{} (which must be PEM, without a password)", config.key.string())));
  if (SSL_CTX_check_private_key(context) != 1)
    return fail(
        openssl_error(fmt::format("{} is not the key of {}", config.key.string(), config.certificate.string())));
  return result;
}

std::unique_ptr<transport> make_transport(int descriptor, const tls_context* tls) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (tls == nullptr)
    return std::make_unique<plain_transport>(descriptor);
  auto session = session_ptr{SSL_new(tls->get())};
  if (session == nullptr || SSL_set_fd(session.get(), descriptor) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return std::make_unique<tls_transport>(descriptor, std::move(session));
}

} // namespace troupe::serving
