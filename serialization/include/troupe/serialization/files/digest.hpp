#pragma once

#include <troupe/error.hpp>
#include <troupe/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;
struct XXH3_state_s;

namespace troupe::serialization {

class checkpoint;

/// The bytes of `text`, for the functions below.
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span{text.data(), text.size()});
}

/// XXH3-64 with seed 0: detects damage, not forgery.
[[nodiscard]] std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept;

/// `xxh3()` over bytes that arrive in pieces.
class xxh3_stream {
 public:
  xxh3_stream();

  void update(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint64_t digest() const noexcept;

 private:
  struct release {
    void operator()(XXH3_state_s* state) const noexcept;
  };

  std::unique_ptr<XXH3_state_s, release> state_;
};

/// SHA-256 over bytes that arrive in pieces. Throws `exception` if OpenSSL cannot provide it.
class sha256 {
 public:
  sha256();

  void update(std::span<const std::byte> bytes);

  /// Appends `value` as eight little-endian bytes.
  void update_u64(std::uint64_t value);

  /// The digest as 64 lower-case hexadecimal digits. The last call on this object.
  [[nodiscard]] std::string hex_digest();

 private:
  struct release {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };

  std::unique_ptr<evp_md_ctx_st, release> context_;
};

/// SHA-256 as 64 lower-case hexadecimal digits.
[[nodiscard]] std::string sha256_hex(std::span<const std::byte> bytes);

/// The identity of a state: SHA-256 over the tensors in order of name, each as the name's length (u64) and bytes, the
/// dtype's number (u8), the number of dimensions (u64), the dimensions (u64 each) and the elements; then the length
/// (u64) and bytes of `values_json`, unless it is empty or "{}"; and nothing else. All little-endian.
[[nodiscard]] std::string state_sha256(std::span<const tensor_view> tensors, std::string_view values_json);

/// The same for tensors whose bytes arrive in pieces: `read(i, sink)` passes the bytes of tensor i to `sink`, in order.
[[nodiscard]] std::string
state_sha256(std::span<const tensor_spec> tensors,
             const std::function<void(std::size_t, const std::function<void(std::span<const std::byte>)>&)>& read,
             std::string_view values_json);

/// The identity of a stored state; equal to that of the state before it was stored. Reads the files once, chunk by
/// chunk, and verifies every chunk; fails as `checkpoint::read_chunks` does.
[[nodiscard]] expected<std::string> state_sha256(const checkpoint& stored);

/// HMAC-SHA-256 of `message` under `key`. Throws `exception` if OpenSSL cannot provide it.
[[nodiscard]] std::array<std::byte, 32> hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

/// Whether both are equal, in a time that depends only on their lengths: for secrets and their digests.
[[nodiscard]] bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// `size_bytes` bytes from the system's cryptographic generator, as lower-case hexadecimal digits, two for each byte.
/// Throws `exception` if the generator fails.
[[nodiscard]] std::string random_hex(std::size_t size_bytes);

/// Two lower-case hexadecimal digits for each byte.
[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);

} // namespace troupe::serialization
