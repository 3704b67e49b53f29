#include <troupe/serialization/files/digest.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <utility>
#include <vector>
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
// The same digests with the processor's widest instructions, at twice the speed or more.
#include <xxh_x86dispatch.h>
#endif

namespace troupe::serialization {

// Tensors are hashed and stored in the byte order of memory.
static_assert(std::endian::native == std::endian::little, "checkpoints hold little-endian bytes");

namespace {

using byte_sink = std::function<void(std::span<const std::byte>)>;

void require(bool success, const char* what) {
  if (!success)
    throw exception{errc::internal, fmt::format("OpenSSL failed at {}: check its configuration on this machine", what)};
}

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void update_spec(sha256& digest, const tensor_spec& spec) {
  digest.update_u64(spec.name.size());
  digest.update(bytes_of(spec.name));
  auto number = std::byte{static_cast<std::uint8_t>(spec.type)};
  digest.update({&number, 1});
  digest.update_u64(spec.shape.size());
  for (auto dimension : spec.shape)
    digest.update_u64(dimension);
}

void update_values(sha256& digest, std::string_view values_json) {
  if (values_json.empty() || values_json == "{}")
    return;
  digest.update_u64(values_json.size());
  digest.update(bytes_of(values_json));
}

/// The indices 0 to `count` - 1, ordered by the tensors' names.
template <class NameOf>
std::vector<std::size_t> order_by_name(std::size_t count, NameOf name_of) {
  auto result = std::vector<std::size_t>(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = i;
  std::ranges::stable_sort(result, {}, name_of);
  return result;
}

} // namespace

std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

xxh3_stream::xxh3_stream() : state_(XXH3_createState()) {
  if (!state_)
    throw std::bad_alloc{};
  XXH3_64bits_reset(state_.get());
}

void xxh3_stream::update(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::uint64_t xxh3_stream::digest() const noexcept {
  return XXH3_64bits_digest(state_.get());
}

void xxh3_stream::release::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}

sha256::sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "SHA-256");
}

void sha256::update(std::span<const std::byte> bytes) {
  if (!bytes.empty())
    require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "SHA-256");
}

void sha256::update_u64(std::uint64_t value) {
  auto bytes = std::array<std::byte, 8>{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(value >> (8 * i));
  update(bytes);
}

std::string sha256::hex_digest() {
  auto digest = std::array<std::byte, 32>{};
  require(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1, "SHA-256");
  return to_hex(digest);
}

void sha256::release::operator()(evp_md_ctx_st* context) const noexcept {
  EVP_MD_CTX_free(context);
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  auto digest = sha256{};
  digest.update(bytes);
  return digest.hex_digest();
}

std::string state_sha256(std::span<const tensor_view> tensors, std::string_view values_json) {
  auto read = [&](std::size_t i, const byte_sink& sink) { sink({tensors[i].data, tensors[i].spec.size_bytes()}); };
  return state_sha256(specs_of(tensors), read, values_json);
}

std::string state_sha256(std::span<const tensor_spec> tensors,
                         const std::function<void(std::size_t, const byte_sink&)>& read, std::string_view values_json) {
  auto digest = sha256{};
  auto name_of = [&](std::size_t i) -> const std::string& { return tensors[i].name; };
  for (auto i : order_by_name(tensors.size(), name_of)) {
    update_spec(digest, tensors[i]);
    read(i, [&](std::span<const std::byte> bytes) { digest.update(bytes); });
  }
  update_values(digest, values_json);
  return digest.hex_digest();
}

expected<std::string> state_sha256(const checkpoint& stored) {
  auto digest = sha256{};
  const auto& tensors = stored.content().tensors;
  auto name_of = [&](std::size_t i) -> const std::string& { return tensors[i].spec.name; };
  for (auto i : order_by_name(tensors.size(), name_of)) {
    update_spec(digest, tensors[i].spec);
    auto read = stored.read_chunks(i, [&](std::span<const std::byte> bytes) { digest.update(bytes); });
    if (!read)
      return fail(std::move(read.error()));
  }
  update_values(digest, stored.content().values_json);
  return digest.hex_digest();
}

std::array<std::byte, 32> hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  auto result = std::array<std::byte, 32>{};
  // OpenSSL reuses the previous key for a null pointer, so an empty key needs a valid one.
  auto none = std::byte{};
  const void* key_data = key.empty() ? &none : key.data();
  require(HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()), raw(message), message.size(),
               reinterpret_cast<unsigned char*>(result.data()), nullptr) != nullptr,
          "HMAC");
  return result;
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size())
    return false;
  return a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_hex(std::size_t size_bytes) {
  auto bytes = std::vector<std::byte>(size_bytes);
  if (size_bytes > 0)
    require(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size_bytes)) == 1,
            "random bytes");
  return to_hex(bytes);
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr auto digits = std::string_view{"0123456789abcdef"};
  auto result = std::string{};
  result.reserve(bytes.size() * 2);
  for (auto byte : bytes) {
    result += digits[std::to_integer<std::size_t>(byte >> 4)];
    result += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return result;
}

} // namespace troupe::serialization
