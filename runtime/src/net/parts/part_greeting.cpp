#include "net/parts/part_greeting.hpp"

#include "net/parts/part_messages.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <cstring>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

namespace troupe::runtime {

using nlohmann::json;
namespace tcp = collectives::tcp;

namespace {

constexpr std::size_t length_bytes = sizeof(std::uint32_t);

std::uint32_t length_in(std::span<const std::byte> prefix) {
  std::uint32_t result = 0;
  std::memcpy(&result, prefix.data(), sizeof(result));
  return ntohl(result);
}

} // namespace

part_greeting::outcome part_greeting::advance(const std::stop_token& stop) {
  if ((!channel_ && !make_channel()) || (session_ != nullptr && !shake_hands()))
    return refused{};
  while (session_ == nullptr) {
    if (!flush() || (!wants_to_write_ && !receive()))
      return refused{};
    if (wants_to_write_ || incoming_.size() < wanted_bytes_)
      return {};
    const auto* first = reinterpret_cast<const char*>(incoming_.data());
    const auto text = json::parse(first + length_bytes, first + incoming_.size(), nullptr, false);
    incoming_.clear();
    if (!text.is_object())
      return refused{};
    if (handshake_ && accepts(text))
      return secure_stream::over(std::move(channel_), std::move(binding_), stop);
    if (handshake_ || !answer_hello(text))
      return refused{};
  }
  return {};
}

/// False if there is none to be had.
bool part_greeting::make_channel() {
  const auto key = secret_.key();
  if (!key) {
    channel_ = tcp::make_plain_channel(std::move(socket_));
    return true;
  }
  auto made = tcp::make_tls_channel(std::move(socket_), tcp::tls_side::server, key->key, key->name);
  if (!made)
    return false;
  session_ = made->get();
  channel_ = std::move(*made);
  return true;
}

/// False if it has failed.
bool part_greeting::shake_hands() {
  const auto now = session_->shake_hands();
  wants_to_write_ = now == tcp::tls_session::state::wants_write;
  if (now == tcp::tls_session::state::done)
    binding_ = serialization::to_hex(std::exchange(session_, nullptr)->binding());
  return now != tcp::tls_session::state::failed;
}

/// Sends pending bytes. False if the connection has ended.
bool part_greeting::flush() {
  auto after = tcp::transferred::state::open;
  while (!outgoing_.empty() && after == tcp::transferred::state::open) {
    const auto rest = iovec{outgoing_.data(), outgoing_.size()};
    const auto sent = channel_->write({&rest, 1});
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent.bytes));
    after = sent.after;
  }
  if (outgoing_.empty() && after != tcp::transferred::state::closed)
    after = channel_->flush().after;
  wants_to_write_ = !outgoing_.empty() || channel_->has_unsent();
  return after != tcp::transferred::state::closed;
}

/// Reads the length of the next text, then the text. False if the connection has ended, or announces too much.
bool part_greeting::receive() {
  for (;;) {
    wanted_bytes_ = length_bytes;
    if (incoming_.size() >= length_bytes) {
      const auto length = length_in(incoming_);
      if (length > greeting_limit_bytes)
        return false;
      wanted_bytes_ += length;
      if (incoming_.size() == wanted_bytes_)
        return true;
    }
    const auto had = incoming_.size();
    incoming_.resize(wanted_bytes_);
    const auto rest = iovec{&incoming_[had], wanted_bytes_ - had};
    const auto got = channel_->read({&rest, 1});
    incoming_.resize(had + got.bytes);
    if (incoming_.size() < wanted_bytes_ && got.after != tcp::transferred::state::open)
      return got.after == tcp::transferred::state::would_block;
  }
}

bool part_greeting::answer_hello(const json& hello) {
  const auto run = run_id{hello.value("run", "")};
  if (run != secret_.run)
    return false;
  // A proof that was made for another session would not fit this one.
  request_ = {run, worker_id{hello.value("worker", 0u)}, hello.value("nonce", "") + binding_};
  auto& handshake = handshake_.emplace(secret_.secret);
  const auto nonce = serialization::random_hex(16);
  const auto challenge = handshake.challenge(request_, nonce + binding_);
  send({{"nonce", nonce}, {"proof", challenge.proof}});
  return true;
}

bool part_greeting::accepts(const json& proof) {
  return handshake_->verify({request_.run, request_.worker, proof.value("proof", "")}).has_value();
}

void part_greeting::send(const json& text) {
  const auto body = text.dump();
  const auto length = htonl(static_cast<std::uint32_t>(body.size()));
  const auto prefix = std::as_bytes(std::span{&length, 1});
  outgoing_.assign(prefix.begin(), prefix.end());
  const auto bytes = std::as_bytes(std::span{body});
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

} // namespace troupe::runtime
