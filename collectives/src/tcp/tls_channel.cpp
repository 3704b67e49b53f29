#include "tcp/channel.hpp"

#include "tcp/error_text.hpp"
#include "tcp/outgoing_records.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <optional>
#include <string_view>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace troupe::collectives::tcp {

namespace {

/// AES-256-GCM would take a third more time.
constexpr std::array<unsigned char, 2> cipher_id = {0x13, 0x01};
constexpr auto cipher_name = "TLS_AES_128_GCM_SHA256";

/// The size of one read from the socket.
constexpr std::size_t incoming_bytes = 128 << 10;

template <auto Release>
struct released_by {
  template <class T>
  void operator()(T* x) const noexcept {
    Release(x);
  }
};
using context_ptr = std::unique_ptr<SSL_CTX, released_by<SSL_CTX_free>>;
using ssl_ptr = std::unique_ptr<SSL, released_by<SSL_free>>;
using session_ptr = std::unique_ptr<SSL_SESSION, released_by<SSL_SESSION_free>>;

std::string last_error() {
  const auto code = ::ERR_peek_last_error();
  std::array<char, 256> text{};
  ::ERR_error_string_n(code, text.data(), text.size());
  ::ERR_clear_error();
  const auto is_end = code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  return is_end ? "the peer closed the connection" : text.data();
}

class psk_channel;

psk_channel& channel_of(SSL* ssl);

class psk_channel final : public tls_channel {
 public:
  psk_channel(unique_fd socket, tls_side side, const session_key& key, std::string name, std::uint64_t records_per_key)
      : socket_(std::move(socket)),
        records_(socket_.get()),
        key_(key),
        name_(std::move(name)),
        side_(side),
        records_per_key_(records_per_key) {}

  ~psk_channel() override { ::OPENSSL_cleanse(key_.data(), key_.size()); }

  expected<void> start(SSL_CTX* context) {
    ssl_.reset(::SSL_new(context));
    auto* input = ::BIO_new_socket(socket_.get(), BIO_NOCLOSE);
    auto* output = ::BIO_new(record_writer());
    if (!ssl_ || input == nullptr || output == nullptr || SSL_set_app_data(ssl_.get(), this) != 1) {
      ::BIO_free(input);
      ::BIO_free(output);
      return fail(errc::internal, fmt::format("OpenSSL cannot start TLS: {}", last_error()));
    }
    ::BIO_set_data(output, &records_);
    ::BIO_set_init(output, 1);
    ::SSL_set_bio(ssl_.get(), input, output);
    if (side_ == tls_side::client)
      ::SSL_set_connect_state(ssl_.get());
    else
      ::SSL_set_accept_state(ssl_.get());
    return {};
  }

  // -- the handshake

  state shake_hands() override {
    if (!ssl_)
      return state::done;
    ::ERR_clear_error();
    const auto result = ::SSL_do_handshake(ssl_.get());
    const auto failure = result == 1 ? SSL_ERROR_NONE : ::SSL_get_error(ssl_.get(), result);
    if (const auto code = records_.flush(); code == EAGAIN) {
      return state::wants_write;
    } else if (code != 0) {
      static_cast<void>(closed_because(text_of(code)));
      return state::failed;
    }
    if (failure == SSL_ERROR_NONE) {
      // Without the key there would be no session to resume, and no certificate either.
      if (::SSL_session_reused(ssl_.get()) == 1 && sends_with_ && receives_with_ && export_binding()) {
        take_over();
        return state::done;
      }
      static_cast<void>(closed_because("the peer does not have the session's key"));
      return state::failed;
    }
    if (failure == SSL_ERROR_WANT_READ)
      return state::wants_read;
    if (failure == SSL_ERROR_WANT_WRITE)
      return state::wants_write;
    static_cast<void>(closed_because(last_error()));
    return state::failed;
  }

  std::string why() const override { return channel::why(); }
  const session_binding& binding() const noexcept override { return binding_; }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// The session that both sides derive from the key.
  [[nodiscard]] session_ptr make_session(SSL* ssl) const {
    session_ptr result{::SSL_SESSION_new()};
    const auto* cipher = ::SSL_CIPHER_find(ssl, cipher_id.data());
    if (!result || cipher == nullptr ||
        ::SSL_SESSION_set1_master_key(result.get(), reinterpret_cast<const unsigned char*>(key_.data()), key_.size()) !=
            1 ||
        ::SSL_SESSION_set_cipher(result.get(), cipher) != 1 ||
        ::SSL_SESSION_set_protocol_version(result.get(), TLS1_3_VERSION) != 1)
      return nullptr;
    return result;
  }

  /// OpenSSL has derived the secret of one direction.
  void note_secret(tls_side sender, const traffic_secret& secret) {
    (sender == side_ ? sends_with_ : receives_with_).emplace(secret, records_per_key_);
  }

  // -- the channel

  transferred write(std::span<const iovec> buffers) override {
    transferred result;
    std::size_t used = 0;
    while (!buffers.empty()) {
      // For the announcement of a key, too.
      if (!records_.has_room(record_content_bytes + key_update.size() + 2 * record_overhead_bytes)) {
        if (const auto code = records_.flush(); code != 0) {
          result.after = code == EAGAIN ? transferred::state::would_block : closed_because(text_of(code)).after;
          return result;
        }
      }
      if (sends_with_->is_used_up()) {
        const std::array<iovec, 1> announcement{{{const_cast<std::byte*>(key_update.data()), key_update.size()}}};
        add_record(record_content::handshake, announcement);
        sends_with_->advance();
      }
      std::array<iovec, 16> content;
      std::size_t count = 0;
      std::size_t size = 0;
      for (; !buffers.empty() && count < content.size() && size < record_content_bytes; ++count) {
        const auto part = std::min(buffers[0].iov_len - used, record_content_bytes - size);
        content[count] = {static_cast<char*>(buffers[0].iov_base) + used, part};
        size += part;
        used += part;
        if (used == buffers[0].iov_len) {
          buffers = buffers.subspan(1);
          used = 0;
        }
      }
      add_record(record_content::application_data, {content.data(), count});
      result.bytes += size;
    }
    return result;
  }

  transferred read(std::span<const iovec> buffers) override {
    transferred result;
    std::size_t used = 0;
    forget_drained();
    while (!buffers.empty()) {
      if (rest_begin_ != rest_.size()) {
        // Of a record that was larger than the buffers.
        const auto part = std::min(buffers[0].iov_len - used, rest_.size() - rest_begin_);
        std::memcpy(static_cast<char*>(buffers[0].iov_base) + used, rest_.data() + rest_begin_, part);
        rest_begin_ += part;
        result.bytes += part;
        used += part;
        if (used == buffers[0].iov_len) {
          buffers = buffers.subspan(1);
          used = 0;
        }
        continue;
      }
      const auto record = next_record();
      if (record.empty()) {
        // A socket that gave less than it was asked for has no more.
        result.after = forget_drained() ? transferred::state::would_block : receive();
        // What has arrived is passed on first; the next call reports the end.
        if (result.after == transferred::state::closed && result.bytes != 0)
          result.after = transferred::state::open;
        if (result.after != transferred::state::open || (is_ended() && result.bytes != 0))
          return result;
        continue;
      }
      if (!open_record(record, buffers, used, result.bytes)) {
        result.after = transferred::state::closed;
        return result;
      }
    }
    return result;
  }

  bool has_unread() const noexcept override { return rest_begin_ != rest_.size() || incoming_begin_ != incoming_end_; }
  bool has_unsent() const noexcept override { return !records_.is_empty(); }

  transferred flush() override {
    const auto code = records_.flush();
    if (code == EAGAIN)
      return {0, transferred::state::would_block};
    return code == 0 ? transferred{} : closed_because(text_of(code));
  }

  int fd() const noexcept override { return socket_.get(); }

 private:
  enum class socket_state : std::uint8_t {
    may_have_more,
    /// It gave less than it was asked for.
    drained,
    /// Nothing is read from it any more.
    ended,
  };

  [[nodiscard]] bool is_ended() const noexcept { return arriving_ == socket_state::ended; }

  /// The socket is asked again the next time. Whether it was drained.
  bool forget_drained() noexcept {
    if (arriving_ != socket_state::drained)
      return false;
    arriving_ = socket_state::may_have_more;
    return true;
  }

  bool export_binding() {
    static constexpr auto label = std::string_view{"EXPORTER-Channel-Binding"};
    return ::SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(binding_.data()), binding_.size(),
                                        label.data(), label.size(), nullptr, 0, 0) == 1;
  }

  /// From here on records are sealed and opened in this class. OpenSSL has read nothing beyond the handshake, because
  /// it does not read ahead, and sends nothing after it, because there are no tickets.
  void take_over() {
    ssl_.reset();
    incoming_ = std::make_unique_for_overwrite<std::byte[]>(incoming_bytes);
  }

  /// `records_` has room for it.
  void add_record(record_content type, std::span<const iovec> content) {
    records_.extend(sends_with_->seal(type, content, reinterpret_cast<std::byte*>(records_.next())));
  }

  /// The next whole record that has arrived; empty if there is none.
  std::span<const std::byte> next_record() {
    const auto arrived = std::span{incoming_.get() + incoming_begin_, incoming_end_ - incoming_begin_};
    if (arrived.size() < record_header_bytes)
      return {};
    const auto size = record_bytes_of(arrived);
    if (size == 0) {
      arriving_ = socket_state::ended;
      static_cast<void>(closed_because("the peer sends no TLS records"));
    }
    return size == 0 || arrived.size() < size ? std::span<const std::byte>{} : arrived.first(size);
  }

  /// Reads more from the socket.
  transferred::state receive() {
    if (is_ended())
      return transferred::state::closed;
    if (incoming_begin_ != 0) {
      std::memmove(incoming_.get(), incoming_.get() + incoming_begin_, incoming_end_ - incoming_begin_);
      incoming_end_ -= std::exchange(incoming_begin_, 0);
    }
    for (;;) {
      const auto got = ::recv(socket_.get(), incoming_.get() + incoming_end_, incoming_bytes - incoming_end_, 0);
      if (got > 0) {
        incoming_end_ += static_cast<std::size_t>(got);
        arriving_ = incoming_end_ == incoming_bytes ? socket_state::may_have_more : socket_state::drained;
        return transferred::state::open;
      }
      if (got < 0 && errno == EINTR)
        continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return transferred::state::would_block;
      arriving_ = socket_state::ended;
      return closed_because(got == 0 ? "the peer closed the connection" : text_of(errno)).after;
    }
  }

  /// Decrypts straight into the buffers if the record fits into them. False if it is forged or the end.
  bool open_record(std::span<const std::byte> record, std::span<const iovec>& buffers, std::size_t& used,
                   std::size_t& bytes) {
    const auto size = content_bytes_of(record.size());
    std::array<iovec, 3> content;
    std::size_t count = 0;
    std::size_t room = 0;
    for (; count < std::min(buffers.size(), content.size()) && room < size; ++count) {
      const auto skipped = count == 0 ? used : 0;
      content[count] = {static_cast<char*>(buffers[count].iov_base) + skipped, buffers[count].iov_len - skipped};
      room += content[count].iov_len;
    }
    // A short record may be a message of TLS itself, which is none of the caller's.
    const auto is_direct = room >= size && size > key_update.size();
    if (!is_direct) {
      rest_.resize(size);
      rest_begin_ = 0;
      content[0] = {rest_.data(), size};
      count = 1;
    }
    const auto type = receives_with_->open(record, {content.data(), count});
    incoming_begin_ += record.size();
    if (!type || *type != record_content::application_data) {
      const auto is_update = type && *type == record_content::handshake && !is_direct &&
                             std::ranges::equal(std::as_bytes(std::span{rest_}), key_update);
      rest_.clear();
      rest_begin_ = 0;
      if (is_update) {
        receives_with_->advance();
        return true;
      }
      arriving_ = socket_state::ended;
      static_cast<void>(closed_because(type ? "the peer ended the TLS session" : type.error().message));
      return false;
    }
    if (!is_direct)
      return true;
    bytes += size;
    for (auto left = size; left != 0;) {
      const auto part = std::min(left, buffers[0].iov_len - used);
      left -= part;
      used += part;
      if (used == buffers[0].iov_len) {
        buffers = buffers.subspan(1);
        used = 0;
      }
    }
    return true;
  }

  unique_fd socket_;
  outgoing_records records_;
  session_key key_;
  const std::string name_;
  const tls_side side_;
  const std::uint64_t records_per_key_;
  /// Until the handshake is over.
  ssl_ptr ssl_;
  session_binding binding_{};
  /// Both are known once the handshake is over.
  std::optional<record_key> sends_with_;
  std::optional<record_key> receives_with_;
  /// Records as they arrive. Not zeroed, so that most of it is no memory for peers that send little.
  std::unique_ptr<std::byte[]> incoming_;
  std::size_t incoming_begin_ = 0;
  std::size_t incoming_end_ = 0;
  /// The rest of a record that did not fit into the caller's buffers.
  std::vector<char> rest_;
  std::size_t rest_begin_ = 0;
  socket_state arriving_ = socket_state::may_have_more;
};

psk_channel& channel_of(SSL* ssl) {
  return *static_cast<psk_channel*>(SSL_get_app_data(ssl));
}

/// The client offers its session under the connection's name.
int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes, SSL_SESSION** session) {
  const auto& channel = channel_of(ssl);
  *id = reinterpret_cast<const unsigned char*>(channel.name().data());
  *id_bytes = channel.name().size();
  *session = channel.make_session(ssl).release();
  return *session != nullptr ? 1 : 0;
}

/// Finds the only session that the server accepts: the name and key of this connection's authenticated peer.
int find_session(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
  const auto& channel = channel_of(ssl);
  const auto offered = std::as_bytes(std::span{id, id_bytes});
  *session = nullptr;
  if (!serialization::equal_constant_time(offered, std::as_bytes(std::span{channel.name()})))
    return 0;
  *session = channel.make_session(ssl).release();
  return *session != nullptr ? 1 : 0;
}

int digit_of(char x) noexcept {
  return x >= '0' && x <= '9'   ? x - '0'
         : x >= 'a' && x <= 'f' ? x - 'a' + 10
         : x >= 'A' && x <= 'F' ? x - 'A' + 10
                                : -1;
}

/// OpenSSL passes on the secrets as lines: LABEL CLIENT_RANDOM SECRET, the last two in hexadecimal digits.
void note_secret(const SSL* ssl, const char* text) {
  const auto line = std::string_view{text};
  const auto is_client = line.starts_with("CLIENT_TRAFFIC_SECRET_0 ");
  if (!is_client && !line.starts_with("SERVER_TRAFFIC_SECRET_0 "))
    return;
  const auto digits = line.substr(line.rfind(' ') + 1);
  traffic_secret secret{};
  if (digits.size() != 2 * secret.size())
    return;
  for (std::size_t i = 0; i < secret.size(); ++i)
    secret[i] = static_cast<std::byte>(digit_of(digits[2 * i]) << 4 | digit_of(digits[2 * i + 1]));
  channel_of(const_cast<SSL*>(ssl)).note_secret(is_client ? tls_side::client : tls_side::server, secret);
  ::OPENSSL_cleanse(secret.data(), secret.size());
}

context_ptr make_context() {
  context_ptr result{::SSL_CTX_new(::TLS_method())};
  if (!result || ::SSL_CTX_set_min_proto_version(result.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(result.get(), cipher_name) != 1 ||
      ::SSL_CTX_set1_groups_list(result.get(), "X25519:P-256") != 1)
    return nullptr;
  // No early data, no tickets, no renewed sessions: a connection lives as long as its group.
  ::SSL_CTX_set_options(result.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_num_tickets(result.get(), 0);
  ::SSL_CTX_set_session_cache_mode(result.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_keylog_callback(result.get(), &note_secret);
  ::SSL_CTX_set_psk_use_session_callback(result.get(), &use_session);
  ::SSL_CTX_set_psk_find_session_callback(result.get(), &find_session);
  return result;
}

} // namespace

expected<std::unique_ptr<tls_channel>> make_tls_channel(unique_fd socket, tls_side side, const session_key& key,
                                                        std::string name) {
  return make_tls_channel(std::move(socket), side, key, std::move(name), record_key::limit);
}

expected<std::unique_ptr<tls_channel>> make_tls_channel(unique_fd socket, tls_side side, const session_key& key,
                                                        std::string name, std::uint64_t records_per_key) {
  // Shared by the process: it holds only settings, and is thread-safe.
  static const auto context = make_context();
  if (!context)
    return fail(errc::internal, fmt::format("OpenSSL cannot provide TLS 1.3 with {}: {}", cipher_name, last_error()));
  auto result = std::make_unique<psk_channel>(std::move(socket), side, key, std::move(name), records_per_key);
  TROUPE_TRY(result->start(context.get()));
  return result;
}

} // namespace troupe::collectives::tcp
