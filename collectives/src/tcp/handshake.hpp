#pragma once

#include <troupe/collectives/tcp_channel.hpp>
#include <troupe/collectives/tcp_communicator.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

/// The handshake by which two ranks prove to each other that they know the run's secret, as two state machines without
/// sockets or clocks. The dialling rank sends a hello (its own name, the peer's name, a nonce). The other answers with
/// its own nonce and a MAC over both; the first answers with another MAC; the second sends a welcome. The MACs are
/// HMAC-SHA-256, keyed with the secret, over all earlier messages and the sender's side, so that messages cannot be
/// replayed. All messages have a fixed size: at most `hello_bytes` + `proof_bytes` are read from an unauthenticated
/// peer.
namespace troupe::collectives::tcp {

inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::size_t mac_bytes = 32;
inline constexpr std::size_t hello_bytes = 80;
inline constexpr std::size_t challenge_bytes = 8 + nonce_bytes + mac_bytes;
inline constexpr std::size_t proof_bytes = mac_bytes;
inline constexpr std::size_t welcome_bytes = 8;

using nonce = std::array<std::byte, nonce_bytes>;

/// From the system's cryptographic generator. Throws `exception` if it fails.
[[nodiscard]] nonce random_nonce();

/// Why a connection is refused. The numbers are sent: append only.
enum class refusal : std::uint8_t {
  none = 0,
  /// It does not speak this protocol.
  garbage = 1,
  other_version = 2,
  /// Another run, or another group of it.
  other_run = 3,
  other_generation = 4,
  /// It does not mean this rank, or is none that should dial it.
  wrong_rank = 5,
  /// One side encrypts and the other does not.
  other_mode = 6,
  wrong_secret = 7,
  /// That rank is connected already.
  duplicate = 8,
  too_slow = 9,
  /// It ended the connection.
  closed_early = 10,
  /// Too many connections that had not proved anything: this one was the oldest.
  crowded_out = 11,
  /// The TLS handshake failed.
  tls_failed = 12,
};

inline constexpr std::size_t refusal_count = 13;

/// "does not know the run's secret".
[[nodiscard]] std::string_view to_string(refusal x) noexcept;

/// The data that both sides have before they connect.
struct group_identity {
  std::array<std::byte, 32> handshake_key;
  std::array<std::byte, 32> tls_key;
  /// A digest of the run's tag.
  std::array<std::byte, 16> run;
  std::uint64_t generation = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  bool is_encrypted = false;
};

[[nodiscard]] group_identity make_identity(const tcp_options& options);

/// One connection of a pair of ranks: they have several, with different uses.
struct connection_name {
  std::uint32_t dialler = 0;
  std::uint32_t acceptor = 0;
  std::uint8_t lane = 0;

  bool operator==(const connection_name&) const = default;
};

/// The outcome of a message. `reply` is sent in any case.
struct goes_on {
  std::vector<std::byte> reply;
};
struct established {
  std::vector<std::byte> reply;
  connection_name name;
  session_key key;
};
struct refused {
  std::vector<std::byte> reply;
  refusal why = refusal::none;
};
using handshake_step = std::variant<goes_on, established, refused>;

/// The side that dials.
class dialling_handshake {
 public:
  dialling_handshake(const group_identity& group, std::uint32_t acceptor, std::uint8_t lane, const nonce& own);

  /// The first message.
  [[nodiscard]] std::span<const std::byte> hello() const noexcept { return hello_; }

  /// The size of the next message from the peer.
  [[nodiscard]] std::size_t wanted_bytes() const noexcept { return is_proved_ ? welcome_bytes : challenge_bytes; }

  /// Takes a message of exactly that size.
  [[nodiscard]] handshake_step take(std::span<const std::byte> message);

 private:
  [[nodiscard]] handshake_step take_challenge(std::span<const std::byte> message);
  [[nodiscard]] handshake_step take_welcome(std::span<const std::byte> message) const;

  const group_identity& group_;
  connection_name name_;
  std::array<std::byte, hello_bytes> hello_{};
  nonce theirs_{};
  bool is_proved_ = false;
};

/// The side that accepts.
class accepting_handshake {
 public:
  accepting_handshake(const group_identity& group, const nonce& own) : group_(group), own_(own) {}

  [[nodiscard]] std::size_t wanted_bytes() const noexcept { return is_challenged_ ? proof_bytes : hello_bytes; }

  /// Takes a message of exactly that size.
  [[nodiscard]] handshake_step take(std::span<const std::byte> message);

  /// The message that ends the handshake: a welcome, or why a peer that has proved itself is refused.
  [[nodiscard]] static std::vector<std::byte> last_message(refusal why);

 private:
  [[nodiscard]] handshake_step take_hello(std::span<const std::byte> message);
  [[nodiscard]] handshake_step take_proof(std::span<const std::byte> message) const;

  const group_identity& group_;
  const nonce own_;
  connection_name name_;
  std::array<std::byte, hello_bytes> hello_{};
  bool is_challenged_ = false;
};

} // namespace troupe::collectives::tcp
