#include "net/part_greeting.hpp"

#include "net/part_messages.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <cstring>
#include <netinet/in.h>
#include <span>
#include <utility>

namespace troupe::runtime {

using nlohmann::json;

namespace {

constexpr std::size_t length_bytes = sizeof(std::uint32_t);

std::uint32_t length_in(std::span<const std::byte> prefix) {
  std::uint32_t result = 0;
  std::memcpy(&result, prefix.data(), sizeof(result));
  return ntohl(result);
}

} // namespace

part_greeting::part_greeting(collectives::unique_fd socket, const part_stream_secret& secret,
                             std::shared_ptr<const tls_context> context)
    : socket_(std::move(socket)), secret_(secret), channel_(std::move(context), socket_.get()) {}

part_greeting::outcome part_greeting::advance(const std::stop_token& stop) {
  if (!has_shaken_hands_ && !shake_hands())
    return refused{};
  while (has_shaken_hands_) {
    if (!flush() || (outgoing_.empty() && !receive()))
      return refused{};
    if (!outgoing_.empty() || incoming_.size() < length_bytes || incoming_.size() < wanted_bytes_)
      return {};
    const auto* first = reinterpret_cast<const char*>(incoming_.data());
    const auto text = json::parse(first + length_bytes, first + incoming_.size(), nullptr, false);
    incoming_.clear();
    if (!text.is_object())
      return refused{};
    if (handshake_ && accepts(text))
      return secure_stream::over(std::move(socket_), channel_.take_session(), stop);
    if (handshake_ || !answer_hello(text))
      return refused{};
  }
  return {};
}

/// False if it has failed.
bool part_greeting::shake_hands() {
  const auto status = channel_.handshake();
  wants_to_write_ = status == tls_status::wants_write;
  has_shaken_hands_ = status == tls_status::done;
  return status != tls_status::failed;
}

/// False if the connection has ended.
bool part_greeting::flush() {
  wants_to_write_ = false;
  while (!outgoing_.empty()) {
    std::size_t count = 0;
    const auto status = channel_.write(outgoing_.data(), outgoing_.size(), count);
    if (status != tls_status::done) {
      wants_to_write_ = status == tls_status::wants_write;
      return status != tls_status::failed;
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return true;
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
    std::size_t count = 0;
    const auto status = channel_.read(&incoming_[had], wanted_bytes_ - had, count);
    incoming_.resize(had + count);
    if (status != tls_status::done) {
      wants_to_write_ = status == tls_status::wants_write;
      return status != tls_status::failed;
    }
  }
}

bool part_greeting::answer_hello(const json& hello) {
  const auto run = run_id{hello.value("run", "")};
  if (run != secret_.run)
    return false;
  request_ = {run, worker_id{hello.value("worker", 0u)}, hello.value("nonce", "")};
  auto& handshake = handshake_.emplace(secret_.secret);
  const auto nonce = serialization::random_hex(16);
  const auto challenge = handshake.challenge(request_, nonce);
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
