#include "tcp/tls_records.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string_view>
#include <vector>

namespace troupe::collectives::tcp {

namespace {

/// A record that carries application data, or pretends to.
constexpr std::byte outer_type{23};
constexpr std::array<std::byte, 2> outer_version = {std::byte{3}, std::byte{3}};

unsigned char* raw(void* x) noexcept {
  return static_cast<unsigned char*>(x);
}
const unsigned char* raw(const void* x) noexcept {
  return static_cast<const unsigned char*>(x);
}

void require(bool is_good) {
  if (!is_good)
    throw exception{errc::internal, "OpenSSL cannot provide AES-128-GCM"};
}

/// HKDF-Expand-Label without a context, for at most one block (RFC 8446, section 7.1; RFC 5869).
std::array<std::byte, 32> expand(const traffic_secret& secret, std::string_view label, std::size_t size_bytes) {
  constexpr std::string_view prefix = "tls13 ";
  std::vector<std::byte> info = {std::byte{0}, static_cast<std::byte>(size_bytes),
                                 static_cast<std::byte>(prefix.size() + label.size())};
  for (auto part : {prefix, label})
    for (auto x : part)
      info.push_back(static_cast<std::byte>(x));
  info.push_back(std::byte{0});
  info.push_back(std::byte{1});
  return serialization::hmac_sha256(secret, info);
}

std::array<std::byte, record_header_bytes> header_of(std::size_t protected_bytes) noexcept {
  return {outer_type, outer_version[0], outer_version[1], static_cast<std::byte>(protected_bytes >> 8),
          static_cast<std::byte>(protected_bytes & 0xff)};
}

} // namespace

void record_key::release::operator()(evp_cipher_ctx_st* x) const noexcept {
  ::EVP_CIPHER_CTX_free(x);
}

record_key::record_key(const traffic_secret& secret, std::uint64_t records_limit)
    : secret_(secret), limit_(records_limit), context_(::EVP_CIPHER_CTX_new()) {
  derive();
}

record_key::~record_key() {
  ::OPENSSL_cleanse(secret_.data(), secret_.size());
}

void record_key::derive() {
  auto key = expand(secret_, "key", 16);
  const auto iv = expand(secret_, "iv", iv_.size());
  std::copy_n(iv.begin(), iv_.size(), iv_.begin());
  sequence_ = 0;
  require(context_ &&
          ::EVP_CipherInit_ex(context_.get(), ::EVP_aes_128_gcm(), nullptr, raw(key.data()), nullptr, 1) == 1);
  ::OPENSSL_cleanse(key.data(), key.size());
}

void record_key::advance() {
  secret_ = expand(secret_, "traffic upd", secret_.size());
  derive();
}

/// The nonce is the record's number, mixed with the key's.
void record_key::begin(bool encrypts, std::span<const std::byte> header) {
  auto nonce = iv_;
  for (std::size_t i = 0; i < sizeof(sequence_); ++i)
    nonce[nonce.size() - 1 - i] ^= static_cast<std::byte>(sequence_ >> 8 * i & 0xff);
  ++sequence_;
  auto size = 0;
  require(::EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, raw(nonce.data()), encrypts ? 1 : 0) == 1 &&
          ::EVP_CipherUpdate(context_.get(), nullptr, &size, raw(header.data()), static_cast<int>(header.size())) == 1);
}

std::size_t record_key::seal(record_content type, std::span<const iovec> content, std::byte* out) {
  std::size_t content_bytes = 0;
  for (const auto& x : content)
    content_bytes += x.iov_len;
  const auto header = header_of(content_bytes + 1 + record_tag_bytes);
  begin(true, header);
  auto* at = std::ranges::copy(header, out).out;
  const auto add = [&](const void* data, std::size_t size_bytes) {
    auto size = 0;
    require(::EVP_EncryptUpdate(context_.get(), raw(at), &size, raw(data), static_cast<int>(size_bytes)) == 1);
    at += size;
  };
  for (const auto& x : content)
    if (x.iov_len != 0)
      add(x.iov_base, x.iov_len);
  add(&type, sizeof(type));
  auto size = 0;
  require(::EVP_EncryptFinal_ex(context_.get(), raw(at), &size) == 1 &&
          ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, record_tag_bytes, at) == 1);
  return static_cast<std::size_t>(at - out) + record_tag_bytes;
}

expected<record_content> record_key::open(std::span<const std::byte> record, std::span<const iovec> content) {
  const auto forged = [] { return fail(errc::damaged, "a record was changed on its way, or is not the peer's"); };
  begin(false, record.first(record_header_bytes));
  const auto* at = record.data() + record_header_bytes;
  auto left = content_bytes_of(record.size());
  const auto take = [&](void* to, std::size_t size_bytes) {
    auto size = 0;
    require(::EVP_DecryptUpdate(context_.get(), raw(to), &size, raw(at), static_cast<int>(size_bytes)) == 1);
    at += size;
  };
  for (const auto& x : content) {
    const auto part = std::min(x.iov_len, left);
    if (part != 0)
      take(x.iov_base, part);
    left -= part;
  }
  auto type = std::uint8_t{0};
  take(&type, sizeof(type));
  auto tag = std::array<std::byte, record_tag_bytes>{};
  std::copy_n(at, tag.size(), tag.begin());
  auto size = 0;
  if (left != 0 || ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, record_tag_bytes, tag.data()) != 1 ||
      ::EVP_DecryptFinal_ex(context_.get(), raw(&type), &size) != 1)
    return forged();
  // Both ends are this class, which pads nothing.
  switch (static_cast<record_content>(type)) {
  case record_content::alert:
  case record_content::handshake:
  case record_content::application_data:
    return static_cast<record_content>(type);
  }
  return forged();
}

std::size_t record_bytes_of(std::span<const std::byte> header) noexcept {
  const auto size = std::to_integer<std::size_t>(header[3]) << 8 | std::to_integer<std::size_t>(header[4]);
  const auto is_record = header[0] == outer_type && header[1] == outer_version[0] && header[2] == outer_version[1];
  if (!is_record || size < 1 + record_tag_bytes || size > record_content_bytes + 1 + record_tag_bytes)
    return 0;
  return record_header_bytes + size;
}

} // namespace troupe::collectives::tcp
