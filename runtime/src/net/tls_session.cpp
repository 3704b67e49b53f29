#include "net/tls_session.hpp"

#include "net/host_name.hpp"
#include "net/keys/certificates.hpp"
#include "net/keys/key_files.hpp"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

// A BIO over a socket, because OpenSSL's own socket BIO raises SIGPIPE.

int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

bool is_temporary(int code) {
  return code == EAGAIN || code == EWOULDBLOCK || code == EINTR;
}

int send_bytes(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  auto result = ::send(socket_of(bio), data, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (result < 0 && is_temporary(errno))
    BIO_set_retry_write(bio);
  return static_cast<int>(result);
}

int receive_bytes(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  auto result = ::recv(socket_of(bio), data, static_cast<std::size_t>(size), 0);
  if (result < 0 && is_temporary(errno))
    BIO_set_retry_read(bio);
  return static_cast<int>(result);
}

long control_socket(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Keeps a background process from prompting for the passphrase of an encrypted key.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

/// OpenSSL's description of its last failure. Clears OpenSSL's error queue.
std::string last_openssl_error() {
  auto code = ERR_peek_last_error();
  const auto* text = ERR_reason_error_string(code);
  ERR_clear_error();
  return text != nullptr ? text : "OpenSSL gives no reason";
}

error file_error(const std::filesystem::path& file) {
  return {errc::not_authenticated, fmt::format("{} cannot be used: {}", file.string(), last_openssl_error())};
}

/// Alerts by which a peer rejects our certificate or asks for a missing one.
bool is_about_certificate(int alert) {
  switch (alert) {
  case SSL_AD_BAD_CERTIFICATE:
  case SSL_AD_UNSUPPORTED_CERTIFICATE:
  case SSL_AD_CERTIFICATE_REVOKED:
  case SSL_AD_CERTIFICATE_EXPIRED:
  case SSL_AD_CERTIFICATE_UNKNOWN:
  case SSL_AD_UNKNOWN_CA:
  case SSL_AD_ACCESS_DENIED:
  case SSL_AD_DECRYPT_ERROR:
  case SSL_AD_CERTIFICATE_REQUIRED:
    return true;
  default:
    return false;
  }
}

/// Why a peer refuses our certificate, as far as an alert says it.
std::string describe_alert(int alert) {
  const auto* text = SSL_alert_desc_string_long(alert);
  switch (alert) {
  case SSL_AD_UNSUPPORTED_CERTIFICATE:
    return fmt::format("{}: it has another role than this connection needs, or none (troupe certs renew HOST --role)",
                       text);
  case SSL_AD_CERTIFICATE_REVOKED:
  case SSL_AD_CERTIFICATE_EXPIRED:
    return fmt::format("{}: see `troupe certs list` on the authority's host", text);
  default:
    return text;
  }
}

/// Whether a peer with this role may be at the other end.
bool is_welcome(certificate_role role, const SSL* ssl) {
  if (SSL_is_server(ssl) == 0)
    return includes(role, certificate_role::node);
  return includes(role, certificate_role::driver);
}

/// OpenSSL calls it for each certificate of the peer's chain. Notes the peer, and checks its role.
int check_peer(int is_good, X509_STORE_CTX* verification) {
  const auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* peer = static_cast<tls_peer*>(SSL_get_app_data(ssl));
  const auto* certificate = X509_STORE_CTX_get0_cert(verification);
  if (peer->serial.empty())
    *peer = {name_of(certificate), serial_of(certificate), role_of(certificate)};
  if (is_good == 1 && X509_STORE_CTX_get_error_depth(verification) == 0 && !is_welcome(peer->role, ssl)) {
    X509_STORE_CTX_set_error(verification, X509_V_ERR_INVALID_PURPOSE);
    return 0;
  }
  return is_good;
}

/// Makes OpenSSL check every certificate against the revocation list, if there is one.
expected<void> load_revocations(SSL_CTX* settings, const tls_files& files, std::set<std::string>& serials) {
  TROUPE_TRY(const auto authority, read_certificate(files.ca));
  TROUPE_TRY(const auto list, read_revocation_list(files.ca, authority.get()));
  if (!list)
    return {};
  auto* store = SSL_CTX_get_cert_store(settings);
  if (X509_STORE_add_crl(store, list.get()) != 1 || X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK) != 1)
    return fail(file_error(revocation_path(files.ca)));
  const auto* entries = X509_CRL_get_REVOKED(list.get());
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i)
    serials.insert(hexadecimal(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
  return {};
}

} // namespace

expected<std::shared_ptr<const tls_context>> tls_context::make(const tls_files& files) {
  ERR_clear_error();
  auto result = std::make_shared<tls_context>();
  result->settings_.reset(SSL_CTX_new(TLS_method()));
  result->socket_.reset(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "troupe socket"));
  auto* settings = result->settings_.get();
  auto* socket = result->socket_.get();
  if (settings == nullptr || socket == nullptr || BIO_meth_set_write(socket, send_bytes) != 1 ||
      BIO_meth_set_read(socket, receive_bytes) != 1 || BIO_meth_set_ctrl(socket, control_socket) != 1 ||
      SSL_CTX_set_min_proto_version(settings, TLS1_3_VERSION) != 1 || SSL_CTX_set_num_tickets(settings, 0) != 1)
    return fail(errc::internal, fmt::format("cannot set up TLS: {}", last_openssl_error()));
  SSL_CTX_set_default_passwd_cb(settings, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(settings, files.certificate.c_str()) != 1)
    return fail(file_error(files.certificate));
  if (SSL_CTX_use_PrivateKey_file(settings, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(file_error(files.key));
  if (SSL_CTX_load_verify_file(settings, files.ca.c_str()) != 1)
    return fail(file_error(files.ca));
  if (files.scope == key_scope::cluster)
    TROUPE_TRY(load_revocations(settings, files, result->revoked_));
  result->scope_ = files.scope;
  // OpenSSL checks that the peer's certificate is meant for its end of a connection.
  SSL_CTX_set_verify(settings, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(settings, SSL_SESS_CACHE_OFF);
  // A repeated write has the same bytes, but their buffer may have moved.
  SSL_CTX_set_mode(settings,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  return result;
}

tls_session::tls_session(std::shared_ptr<const tls_context> context, tls_role role, int fd, std::string_view dialled)
    : context_(std::move(context)), dialled_(dialled), fd_(fd) {
  ERR_clear_error();
  ssl_.reset(SSL_new(context_->settings_.get()));
  auto* bio = ssl_ ? BIO_new(context_->socket_.get()) : nullptr;
  if (bio == nullptr) {
    fail_with({errc::internal, fmt::format("is unreachable because OpenSSL failed: {}", last_openssl_error())});
    return;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): OpenSSL keeps a pointer for its user
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (context_->scope_ == key_scope::cluster) {
    SSL_set_app_data(ssl_.get(), peer_.get());
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, check_peer);
    if (role == tls_role::client && !expect_name(dialled)) {
      fail_with({errc::invalid_argument, fmt::format("has no name that a certificate could be for: '{}'", dialled)});
      return;
    }
  }
  if (role == tls_role::client)
    SSL_set_connect_state(ssl_.get());
  else
    SSL_set_accept_state(ssl_.get());
}

/// Has OpenSSL compare the certificate's alternative names.
bool tls_session::expect_name(std::string_view dialled) {
  const auto name = parse_host(dialled);
  if (!name)
    return false;
  auto* parameters = SSL_get0_param(ssl_.get());
  X509_VERIFY_PARAM_set_hostflags(parameters, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS);
  return (name->is_address ? X509_VERIFY_PARAM_set1_ip_asc(parameters, name->text.c_str())
                           : X509_VERIFY_PARAM_set1_host(parameters, name->text.c_str(), name->text.size())) == 1;
}

bool tls_session::is_peer_named(std::string_view host) const {
  const auto name = parse_host(host);
  const auto* certificate = ssl_ ? SSL_get0_peer_certificate(ssl_.get()) : nullptr;
  if (!name || certificate == nullptr)
    return false;
  constexpr auto how = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS;
  auto* bare = const_cast<X509*>(certificate);
  return (name->is_address ? X509_check_ip_asc(bare, name->text.c_str(), how)
                           : X509_check_host(bare, name->text.c_str(), name->text.size(), how, nullptr)) == 1;
}

tls_status tls_session::handshake() {
  return attempt([this] { return SSL_do_handshake(ssl_.get()); });
}

tls_status tls_session::peek() {
  char byte = 0;
  return attempt([&] { return SSL_peek(ssl_.get(), &byte, 1); });
}

tls_status tls_session::read(void* target, std::size_t size_bytes, std::size_t& read_bytes) {
  return attempt([&] { return SSL_read_ex(ssl_.get(), target, size_bytes, &read_bytes); });
}

tls_status tls_session::write(const void* source, std::size_t size_bytes, std::size_t& written_bytes) {
  return attempt([&] { return SSL_write_ex(ssl_.get(), source, size_bytes, &written_bytes); });
}

bool tls_session::has_pending() const noexcept {
  return !broken_ && SSL_has_pending(ssl_.get()) == 1;
}

void tls_session::close() {
  if (broken_)
    return;
  broken_ = true;
  ERR_clear_error();
  // Called once: a second call would wait for the other end's answer, which nothing depends on.
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

template <class Call>
tls_status tls_session::attempt(Call call) {
  if (broken_)
    return tls_status::failed;
  // SSL_get_error reads the thread's error queue, which other sessions share.
  ERR_clear_error();
  errno = 0;
  auto result = call();
  if (result == 1)
    return tls_status::done;
  switch (SSL_get_error(ssl_.get(), result)) {
  case SSL_ERROR_WANT_READ:
    return tls_status::wants_read;
  case SSL_ERROR_WANT_WRITE:
    return tls_status::wants_write;
  case SSL_ERROR_ZERO_RETURN:
    return fail_with({errc::unreachable, "closed the connection"});
  case SSL_ERROR_SYSCALL:
    return fail_with(
        {errc::unreachable, errno == 0 ? "closed the connection" : fmt::format("was lost: {}", std::strerror(errno))});
  default:
    return fail_with(describe_failure());
  }
}

tls_status tls_session::fail_with(error reason) {
  broken_ = true;
  reason_ = std::move(reason);
  ERR_clear_error();
  // Closing a socket with unread data sends a reset, which can overtake the alert that carries the reason.
  std::array<char, 4096> rest{};
  for (auto i = 0; i < 16 && ::recv(fd_, rest.data(), rest.size(), MSG_DONTWAIT) > 0; ++i)
    ;
  return tls_status::failed;
}

error tls_session::describe_failure() const {
  if (auto verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
    return describe_refusal(verified);
  auto code = ERR_peek_error();
  auto reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
    auto alert = reason - SSL_AD_REASON_OFFSET;
    return {errc::not_authenticated,
            fmt::format("{} ({})", is_about_certificate(alert) ? "refused our certificate" : "ended the handshake",
                        describe_alert(alert))};
  }
  const auto* text = ERR_reason_error_string(code);
  return {errc::not_authenticated,
          fmt::format("does not speak our version of TLS ({})", text != nullptr ? text : "no reason given")};
}

error tls_session::describe_refusal(long verified) const {
  const auto refused = [&](const std::string& why) {
    return error{errc::not_authenticated, fmt::format("has a certificate that we refuse ({})", why)};
  };
  if (peer_->serial.empty())
    return refused(X509_verify_cert_error_string(verified));
  const auto whose = fmt::format("of {}, serial number {}", peer_->name, peer_->serial);
  switch (verified) {
  case X509_V_ERR_INVALID_PURPOSE:
    if (peer_->role == certificate_role::none)
      return refused(fmt::format("{}: it has no role; renew it with `troupe certs renew {}`", whose, peer_->name));
    return refused(fmt::format(
        "{}: its role is {}, and a {} is needed here; `troupe certs renew {} --role both` would "
        "change it",
        whose, to_string(peer_->role),
        to_string(SSL_is_server(ssl_.get()) == 1 ? certificate_role::driver : certificate_role::node), peer_->name));
  case X509_V_ERR_HOSTNAME_MISMATCH:
  case X509_V_ERR_IP_ADDRESS_MISMATCH:
    return refused(fmt::format("{}: it is not for {}, which was dialled; dial a name that it is for, or add this one "
                               "with `troupe certs renew {} --also {}`",
                               whose, dialled_, peer_->name, dialled_));
  case X509_V_ERR_CERT_HAS_EXPIRED:
    return refused(fmt::format("{}: it has expired; renew it with `troupe certs renew {}`", whose, peer_->name));
  default:
    return refused(fmt::format("{}: {}", whose, X509_verify_cert_error_string(verified)));
  }
}

} // namespace troupe::runtime
