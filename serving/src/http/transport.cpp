#include "http/transport.hpp"

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
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::serving {

namespace {

int milliseconds_until(time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

class plain_transport final : public transport {
 public:
  explicit plain_transport(int descriptor) : descriptor_(descriptor) {}
  ~plain_transport() override { ::close(descriptor_); }

  bool begin(time_point) override { return true; }

  std::size_t receive(std::span<char> target, time_point deadline) override {
    for (;;) {
      const auto count = ::recv(descriptor_, target.data(), target.size(), 0);
      if (count >= 0)
        return static_cast<std::size_t>(count);
      if (errno == EINTR)
        continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !await_ready(descriptor_, POLLIN, deadline))
        return 0;
    }
  }

  bool send(std::string_view bytes, time_point deadline) override {
    while (!bytes.empty()) {
      const auto count = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0)
        bytes.remove_prefix(static_cast<std::size_t>(count));
      else if (errno != EINTR &&
               ((errno != EAGAIN && errno != EWOULDBLOCK) || !await_ready(descriptor_, POLLOUT, deadline)))
        return false;
    }
    return true;
  }

  void end() override { ::shutdown(descriptor_, SHUT_WR); }
  bool has_pending() const override { return false; }
  int descriptor() const noexcept override { return descriptor_; }

 private:
  int descriptor_;
};

class tls_transport final : public transport {
 public:
  tls_transport(int descriptor, SSL_CTX* context) : descriptor_(descriptor), session_(SSL_new(context)) {
    if (session_ != nullptr)
      SSL_set_fd(session_, descriptor);
  }
  ~tls_transport() override {
    SSL_free(session_);
    ::close(descriptor_);
  }

  bool begin(time_point deadline) override {
    return session_ != nullptr && repeat(deadline, [this] { return SSL_accept(session_); }) > 0;
  }

  std::size_t receive(std::span<char> target, time_point deadline) override {
    const auto size = static_cast<int>(std::min<std::size_t>(target.size(), std::numeric_limits<int>::max()));
    const auto count = repeat(deadline, [&] { return SSL_read(session_, target.data(), size); });
    return count > 0 ? static_cast<std::size_t>(count) : 0;
  }

  bool send(std::string_view bytes, time_point deadline) override {
    while (!bytes.empty()) {
      // Repeated with the same bytes, as SSL_write requires.
      const auto size = static_cast<int>(std::min<std::size_t>(bytes.size(), std::size_t{1} << 20));
      const auto count = repeat(deadline, [&] { return SSL_write(session_, bytes.data(), size); });
      if (count <= 0)
        return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  void end() override {
    if (!is_broken_)
      (void)SSL_shutdown(session_);
    ERR_clear_error();
    ::shutdown(descriptor_, SHUT_WR);
  }

  bool has_pending() const override { return SSL_has_pending(session_) == 1; }
  int descriptor() const noexcept override { return descriptor_; }

 private:
  /// Repeats a call of OpenSSL until it has done something.
  template <class Call>
  int repeat(time_point deadline, Call call) {
    for (;;) {
      // What other connections of this thread have left would be taken for this one's.
      ERR_clear_error();
      const auto result = call();
      if (result > 0)
        return result;
      const auto reason = SSL_get_error(session_, result);
      const auto is_waiting = reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE;
      if (is_waiting && await_ready(descriptor_, reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline))
        continue;
      is_broken_ = reason != SSL_ERROR_ZERO_RETURN;
      ERR_clear_error();
      return 0;
    }
  }

  int descriptor_;
  SSL* session_;
  /// After which nothing may be called but SSL_free.
  bool is_broken_ = false;
};

error openssl_error(const std::string& what) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  ERR_clear_error();
  return {errc::not_authenticated, fmt::format("{}: {}", what, text.data())};
}

} // namespace

bool await_ready(int descriptor, short events, time_point deadline) {
  for (;;) {
    auto waiting = pollfd{descriptor, events, 0};
    const auto count = ::poll(&waiting, 1, milliseconds_until(deadline));
    if (count > 0)
      return true;
    if (count == 0 || errno != EINTR)
      return false;
  }
}

void tls_context::deleter::operator()(ssl_ctx_st* context) const noexcept {
  SSL_CTX_free(context);
}

expected<tls_context> tls_context::load(const listen_config& config) {
  struct stat status {};
  if (::stat(config.key.c_str(), &status) != 0)
    return fail(errc::not_authenticated, system_error(config.key.string()).message);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return fail(errc::not_authenticated,
                fmt::format("{} may be used by other users: chmod 600 {}", config.key.string(), config.key.string()));
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
  if (SSL_CTX_use_PrivateKey_file(context, config.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(openssl_error(config.key.string()));
  if (SSL_CTX_check_private_key(context) != 1)
    return fail(
        openssl_error(fmt::format("{} is not the key of {}", config.key.string(), config.certificate.string())));
  return result;
}

std::unique_ptr<transport> make_transport(int descriptor, const tls_context* tls) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (tls != nullptr)
    return std::make_unique<tls_transport>(descriptor, tls->get());
  return std::make_unique<plain_transport>(descriptor);
}

} // namespace troupe::serving
