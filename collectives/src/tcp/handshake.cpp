#include "tcp/handshake.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <cstring>
#include <openssl/rand.h>
#include <string>
#include <type_traits>

namespace troupe::collectives::tcp {

namespace {

constexpr std::uint16_t protocol_version = 1;

constexpr std::array<char, 8> hello_magic = {'t', 'r', 'o', 'u', 'p', 'e', '-', 'd'};

struct hello_message {
  std::array<char, 8> magic = hello_magic;
  std::uint16_t version = protocol_version;
  std::uint8_t is_encrypted = 0;
  std::uint8_t lane = 0;
  std::uint32_t dialler = 0;
  std::uint32_t acceptor = 0;
  std::uint32_t world_size = 0;
  std::uint64_t generation = 0;
  std::array<std::byte, 16> run{};
  nonce own{};
};
static_assert(sizeof(hello_message) == hello_bytes && std::has_unique_object_representations_v<hello_message>);

/// Begins with the reason, if there is one to refuse; the rest is then zeros.
struct challenge_message {
  std::uint64_t status = 0;
  nonce own{};
  std::array<std::byte, mac_bytes> mac{};
};
static_assert(sizeof(challenge_message) == challenge_bytes);

template <class Message>
std::vector<std::byte> bytes_of(const Message& x) {
  std::vector<std::byte> result(sizeof(x));
  std::memcpy(result.data(), &x, sizeof(x));
  return result;
}

std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span{text});
}

std::array<std::byte, 32> derive(std::span<const std::byte> key, std::string_view label,
                                 std::span<const std::byte> hello = {}, std::span<const std::byte> challenge = {}) {
  std::vector<std::byte> message;
  for (auto part : {as_span(label), hello, challenge})
    message.insert(message.end(), part.begin(), part.end());
  return serialization::hmac_sha256(key, message);
}

constexpr std::string_view of_acceptor = "troupe data plane 1, acceptor";
constexpr std::string_view of_dialler = "troupe data plane 1, dialler";
constexpr std::string_view of_session = "troupe data plane 1, session";

refusal as_refusal(std::uint64_t status) noexcept {
  return status < refusal_count ? static_cast<refusal>(status) : refusal::garbage;
}

} // namespace

nonce random_nonce() {
  nonce result;
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(result.size())) != 1)
    throw exception{errc::internal, "OpenSSL's random generator failed"};
  return result;
}

std::string_view to_string(refusal x) noexcept {
  switch (x) {
  case refusal::none:
    return "no reason";
  case refusal::garbage:
    return "does not speak the protocol";
  case refusal::other_version:
    return "speaks another version of the protocol";
  case refusal::other_run:
    return "belongs to another run or group";
  case refusal::other_generation:
    return "belongs to another generation";
  case refusal::wrong_rank:
    return "is another rank than expected";
  case refusal::other_mode:
    return "disagrees about encryption";
  case refusal::wrong_secret:
    return "does not know the run's secret";
  case refusal::duplicate:
    return "is connected already";
  case refusal::too_slow:
    return "did not finish the handshake in time";
  case refusal::closed_early:
    return "closed the connection during the handshake";
  case refusal::crowded_out:
    return "was crowded out by other connections";
  case refusal::tls_failed:
    return "failed the TLS handshake";
  }
  return "an unknown reason";
}

group_identity make_identity(const tcp_options& options) {
  group_identity result;
  result.handshake_key = derive(options.secret, "troupe data plane 1, handshake key");
  result.tls_key = derive(options.secret, "troupe data plane 1, TLS key");
  // Without the secret, so that a peer with the wrong one learns that and not that it belongs to another run.
  const auto run = derive({}, "troupe data plane 1, run", as_span(options.tag));
  std::copy_n(run.begin(), result.run.size(), result.run.begin());
  result.generation = options.generation.value;
  result.world_size = options.world_size;
  result.rank = options.rank.value;
  result.is_encrypted = options.encrypted;
  return result;
}

// -- the side that dials ---------------------------------------------------------------------------------------------

dialling_handshake::dialling_handshake(const group_identity& group, std::uint32_t acceptor, std::uint8_t lane,
                                       const nonce& own)
    : group_(group), name_{group.rank, acceptor, lane} {
  hello_message hello;
  hello.is_encrypted = group.is_encrypted ? 1 : 0;
  hello.lane = lane;
  hello.dialler = group.rank;
  hello.acceptor = acceptor;
  hello.world_size = group.world_size;
  hello.generation = group.generation;
  hello.run = group.run;
  hello.own = own;
  std::memcpy(hello_.data(), &hello, sizeof(hello));
}

handshake_step dialling_handshake::take(std::span<const std::byte> message) {
  return is_proved_ ? take_welcome(message) : take_challenge(message);
}

handshake_step dialling_handshake::take_challenge(std::span<const std::byte> message) {
  challenge_message challenge;
  std::memcpy(&challenge, message.data(), sizeof(challenge));
  if (challenge.status != 0)
    return refused{{}, as_refusal(challenge.status)};
  theirs_ = challenge.own;
  if (!serialization::equal_constant_time(derive(group_.handshake_key, of_acceptor, hello_, theirs_), challenge.mac))
    // Zeros prove nothing, and tell the acceptor what is wrong.
    return refused{std::vector<std::byte>(proof_bytes), refusal::wrong_secret};
  is_proved_ = true;
  return goes_on{bytes_of(derive(group_.handshake_key, of_dialler, hello_, theirs_))};
}

handshake_step dialling_handshake::take_welcome(std::span<const std::byte> message) const {
  std::uint64_t status = 0;
  std::memcpy(&status, message.data(), sizeof(status));
  if (status != 0)
    return refused{{}, as_refusal(status)};
  return established{{}, name_, derive(group_.tls_key, of_session, hello_, theirs_)};
}

// -- the side that accepts -------------------------------------------------------------------------------------------

handshake_step accepting_handshake::take(std::span<const std::byte> message) {
  return is_challenged_ ? take_proof(message) : take_hello(message);
}

std::vector<std::byte> accepting_handshake::last_message(refusal why) {
  return bytes_of(static_cast<std::uint64_t>(why));
}

handshake_step accepting_handshake::take_hello(std::span<const std::byte> message) {
  hello_message hello;
  std::memcpy(&hello, message.data(), sizeof(hello));
  const auto refuse = [](refusal why) {
    challenge_message answer;
    answer.status = static_cast<std::uint64_t>(why);
    return refused{bytes_of(answer), why};
  };
  // Strangers get no answer.
  if (hello.magic != hello_magic)
    return refused{{}, refusal::garbage};
  if (hello.version != protocol_version)
    return refuse(refusal::other_version);
  if (hello.run != group_.run)
    return refuse(refusal::other_run);
  if (hello.generation != group_.generation || hello.world_size != group_.world_size)
    return refuse(refusal::other_generation);
  if (hello.acceptor != group_.rank || hello.dialler >= group_.world_size || hello.dialler == group_.rank)
    return refuse(refusal::wrong_rank);
  if ((hello.is_encrypted != 0) != group_.is_encrypted)
    return refuse(refusal::other_mode);
  name_ = {hello.dialler, hello.acceptor, hello.lane};
  std::ranges::copy(message, hello_.begin());
  is_challenged_ = true;
  challenge_message challenge;
  challenge.own = own_;
  challenge.mac = derive(group_.handshake_key, of_acceptor, hello_, own_);
  return goes_on{bytes_of(challenge)};
}

handshake_step accepting_handshake::take_proof(std::span<const std::byte> message) const {
  if (!serialization::equal_constant_time(derive(group_.handshake_key, of_dialler, hello_, own_), message))
    return refused{last_message(refusal::wrong_secret), refusal::wrong_secret};
  return established{last_message(refusal::none), name_, derive(group_.tls_key, of_session, hello_, own_)};
}

} // namespace troupe::collectives::tcp
