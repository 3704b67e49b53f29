#pragma once

#include <troupe/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/uio.h>

struct evp_cipher_ctx_st;

/// The records of TLS 1.3 with AES-128-GCM and SHA-256 (RFC 8446, section 5), once OpenSSL has made the handshake. Its
/// own functions copy every byte once more in each direction; these encrypt from the caller's memory and decrypt into
/// it, as the kernel's TLS does. No sockets.
namespace troupe::collectives::tcp {

/// The secret of one direction. Application data starts with the one that the handshake ends with.
using traffic_secret = std::array<std::byte, 32>;

/// The most content of a record, and what a record adds to it: header, type and tag.
inline constexpr std::size_t record_content_bytes = 16384;
inline constexpr std::size_t record_header_bytes = 5;
inline constexpr std::size_t record_tag_bytes = 16;
inline constexpr std::size_t record_overhead_bytes = record_header_bytes + 1 + record_tag_bytes;

/// The content type of a record.
enum class record_content : std::uint8_t { alert = 21, handshake = 22, application_data = 23 };

/// One direction of a session: its key, and the number of records since the key began.
class record_key {
 public:
  /// How many records one key protects; after that comes the next one (RFC 8446, section 5.5: 2^24.5 full ones).
  static constexpr std::uint64_t limit = std::uint64_t{1} << 24;

  explicit record_key(const traffic_secret& secret, std::uint64_t records_limit = limit);
  record_key(record_key&&) noexcept = default;
  ~record_key();

  /// Appends a record with the content, of at most `record_content_bytes`, to `out`, which has room for it and
  /// `record_overhead_bytes`. Returns its size.
  std::size_t seal(record_content type, std::span<const iovec> content, std::byte* out);

  /// Decrypts a whole record into the buffers, which have room for `content_bytes_of` it, and checks it. Without a
  /// value if it is forged; what is in the buffers then is worthless.
  [[nodiscard]] expected<record_content> open(std::span<const std::byte> record, std::span<const iovec> content);

  /// Whether the sender must announce the next key and switch to it.
  [[nodiscard]] bool is_used_up() const noexcept { return sequence_ >= limit_; }
  void advance();

 private:
  void begin(bool encrypts, std::span<const std::byte> header);
  void derive();

  traffic_secret secret_;
  std::uint64_t limit_;
  std::array<std::byte, 12> iv_{};
  std::uint64_t sequence_ = 0;
  struct release {
    void operator()(evp_cipher_ctx_st* x) const noexcept;
  };
  std::unique_ptr<evp_cipher_ctx_st, release> context_;
};

/// The size of the record that starts with this header; 0 if there is no such record.
[[nodiscard]] std::size_t record_bytes_of(std::span<const std::byte> header) noexcept;

/// The size of what a record of this size carries.
[[nodiscard]] constexpr std::size_t content_bytes_of(std::size_t record_bytes) noexcept {
  return record_bytes - record_overhead_bytes;
}

/// The message that announces the sender's next key.
inline constexpr std::array<std::byte, 5> key_update = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1},
                                                        std::byte{0}};

} // namespace troupe::collectives::tcp
