#include "net/basp_guard.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

namespace {

using bytes = std::vector<std::byte>;

enum operation : std::uint8_t { server_handshake, client_handshake, direct, routed, monitor, down, heartbeat };

template <class T>
void append(bytes& to, T value) {
  for (auto shift = 8 * sizeof(T); shift > 0; shift -= 8)
    to.push_back(static_cast<std::byte>(value >> (shift - 8)));
}

bytes header(std::uint8_t what, std::uint32_t payload_bytes, std::uint64_t data = 0) {
  bytes result{std::byte{what}, {}, {}, {}};
  append(result, payload_bytes);
  append(result, data);
  append(result, std::uint64_t{7});
  append(result, std::uint64_t{9});
  return result;
}

bytes message(std::uint8_t what, std::uint32_t payload_bytes, std::uint64_t data = 0) {
  auto result = header(what, payload_bytes, data);
  // Looks like headers itself, if it is taken for one.
  result.resize(result.size() + payload_bytes, std::byte{0xff});
  return result;
}

bytes operator+(bytes left, const bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

const auto greeting = message(client_handshake, 30);

/// What the guard of an accepting end says of these bytes, if they come in pieces of `piece` bytes.
std::string objection(const bytes& all, std::size_t piece = 32, basp_side side = basp_side::accepted) {
  auto guard = basp_guard{side};
  for (std::size_t i = 0; i < all.size(); i += piece)
    if (auto result = guard.take(std::span{all}.subspan(i, std::min(piece, all.size() - i))))
      return std::string{*result};
  return "";
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("what CAF sends passes, in pieces of any size") {
  const auto all = greeting + message(direct, 100, 0x1000000000000001) + message(heartbeat, 0) +
                   message(routed, 1, 0x8000000000000005) + message(monitor, 64) + message(down, 70) +
                   message(direct, 2000, 0x4000000000000001);
  for (auto piece : {std::size_t{1}, std::size_t{7}, std::size_t{31}, std::size_t{32}, std::size_t{33}, all.size()})
    CHECK(objection(all, piece).empty());
}

TEST_CASE("a header is refused when its last byte has come, and before anything is allocated for it") {
  const auto all = greeting + header(direct, 0xffff'ffff);
  auto guard = basp_guard{basp_side::accepted};
  CHECK_FALSE(guard.take(std::span{all}.first(all.size() - 1)));
  CHECK(guard.take(std::span{all}.last(1)));
}

TEST_CASE("a payload of up to 256 MiB may be announced") {
  CHECK(objection(greeting + header(direct, basp_guard::payload_limit_bytes)).empty());
  CHECK(mentions(objection(greeting + header(direct, basp_guard::payload_limit_bytes + 1)), "256 MiB"));
  CHECK(objection(header(client_handshake, basp_guard::handshake_limit_bytes)).empty());
  CHECK(mentions(objection(header(client_handshake, basp_guard::handshake_limit_bytes + 1)), "1 MiB"));
}

TEST_CASE("a message without the payload that its operation has ends the connection") {
  CHECK(mentions(objection(header(client_handshake, 0)), "without the payload"));
  for (auto what : {direct, routed, monitor, down})
    CHECK(mentions(objection(greeting + header(what, 0)), "without the payload"));
}

TEST_CASE("a heartbeat has no payload") {
  CHECK(objection(greeting + header(heartbeat, 0)).empty());
  CHECK(mentions(objection(greeting + header(heartbeat, 1)), "heartbeat"));
}

TEST_CASE("a message that is marked as a stream's ends the connection") {
  for (auto what : {direct, routed}) {
    // Urgent and normal messages, requests, responses and answered ones.
    for (std::uint64_t data : {0x0ull, 0x1ull << 60, 0x5ull << 60, 0x9ull << 60, 0xdull << 60})
      CHECK(objection(greeting + message(what, 8, data | 5)).empty());
    for (std::uint64_t data : {0x2ull << 60, 0x3ull << 60, 0x6ull << 60, 0xbull << 60, 0xfull << 60})
      CHECK(mentions(objection(greeting + message(what, 8, data | 5)), "stream"));
  }
}

TEST_CASE("the first message is the other end's handshake, and only the first") {
  CHECK(mentions(objection(message(direct, 8)), "before its handshake"));
  CHECK(mentions(objection(message(heartbeat, 0)), "before its handshake"));
  CHECK(mentions(objection(message(server_handshake, 8)), "before its handshake"));
  CHECK(mentions(objection(greeting + greeting), "second handshake"));
  CHECK(mentions(objection(greeting + message(server_handshake, 8)), "second handshake"));
  CHECK(objection(message(server_handshake, 8) + message(direct, 8), 32, basp_side::dialled).empty());
  CHECK(mentions(objection(greeting, 32, basp_side::dialled), "before its handshake"));
}

TEST_CASE("an operation that CAF does not have ends the connection") {
  for (auto what = 7; what < 256; ++what)
    CHECK(mentions(objection(greeting + message(static_cast<std::uint8_t>(what), 8)), "operation"));
}

} // namespace troupe::runtime
