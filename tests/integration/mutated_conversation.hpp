#pragma once

#include "wire_peers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

/// Conversations of CAF's protocol between actor systems, BASP: split into messages, addressed to another node, and
/// damaged. Headers have 32 bytes; see runtime/src/net/basp_guard.hpp.
namespace troupe::testing {

inline constexpr std::size_t basp_header_bytes = 32;

inline std::uint64_t read_number(std::span<const std::byte> bytes) {
  std::uint64_t result = 0;
  for (auto each : bytes)
    result = result << 8 | std::to_integer<std::uint64_t>(each);
  return result;
}

inline void write_number(std::span<std::byte> bytes, std::uint64_t value) {
  for (auto i = bytes.size(); i > 0; --i, value >>= 8)
    bytes[i - 1] = static_cast<std::byte>(value);
}

inline std::size_t payload_bytes(std::span<const std::byte> header) {
  return static_cast<std::size_t>(read_number(header.subspan(4, 4)));
}

/// Header and payload of each message; a last one that is not whole is left out.
inline std::vector<byte_string> split_messages(std::span<const std::byte> all) {
  std::vector<byte_string> result;
  while (all.size() >= basp_header_bytes) {
    const auto size = basp_header_bytes + payload_bytes(all);
    if (size > all.size())
      break;
    result.emplace_back(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    all = all.subspan(size);
  }
  return result;
}

inline void replace_all(byte_string& in, const byte_string& from, const byte_string& to) {
  for (auto at = in.begin(); !from.empty();) {
    at = std::search(at, in.end(), from.begin(), from.end());
    if (at == in.end())
      return;
    at = std::copy(to.begin(), to.end(), at);
  }
}

/// Who answers at a port: what its handshake says.
struct node_identity {
  byte_string id;
  std::uint64_t actor = 0;

  /// Of the message with which a node begins. Its payload has the node's id, a list of names, the published actor's
  /// number and more; `id_bytes` is the length of ids.
  static node_identity of(const byte_string& handshake, std::size_t id_bytes) {
    const auto payload = std::span{handshake}.subspan(basp_header_bytes);
    auto at = id_bytes;
    if (payload.size() < id_bytes + 9)
      throw std::runtime_error{"a handshake of this node is too short"};
    // Lengths below 128 take a byte.
    auto names = std::to_integer<std::size_t>(payload[at++]);
    for (; names > 0; --names)
      at += 1 + std::to_integer<std::size_t>(payload[at]);
    return {{payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(id_bytes)},
            read_number(payload.subspan(at, 8))};
  }
};

/// What a driver said to a node once.
class recorded_conversation {
 public:
  recorded_conversation(const byte_string& driver, const byte_string& node) : messages_(split_messages(driver)) {
    const auto answers = split_messages(node);
    if (messages_.size() < 5 || answers.empty())
      throw std::runtime_error{"too little was recorded"};
    driver_id_ = {messages_.front().begin() + basp_header_bytes, messages_.front().end()};
    node_ = node_identity::of(answers.front(), driver_id_.size());
  }

  [[nodiscard]] std::size_t size() const noexcept { return messages_.size(); }
  [[nodiscard]] std::size_t id_bytes() const noexcept { return driver_id_.size(); }

  /// The same, said to another node by somebody whose id has never been heard.
  [[nodiscard]] std::vector<byte_string> addressed_to(const node_identity& node, random_source& random) const {
    auto own_id = driver_id_;
    for (auto i = own_id.size() - std::min<std::size_t>(own_id.size(), 16); i < own_id.size(); ++i)
      own_id[i] = static_cast<std::byte>(random());
    auto result = messages_;
    for (auto& each : result) {
      const auto target = std::span{each}.subspan(24, 8);
      if (read_number(target) == node_.actor)
        write_number(target, node.actor);
      replace_all(each, node_.id, node.id);
      replace_all(each, driver_id_, own_id);
    }
    return result;
  }

 private:
  std::vector<byte_string> messages_;
  byte_string driver_id_;
  node_identity node_;
};

/// Damages bytes in place.
inline void damage(byte_string& bytes, random_source& random) {
  static constexpr std::array<std::uint64_t, 12> numbers{
      0, 1, 2, 0x7f, 0xff, 0x7fff'ffff, 0x8000'0000, 0xffff'ffff, 0x1000'0000, 0x1000'0001, ~0ull, 1ull << 63};
  if (bytes.empty())
    return;
  switch (random() % 5) {
  case 0:
    bytes[below(random, bytes.size())] ^= static_cast<std::byte>(1 << random() % 8);
    break;
  case 1:
    bytes[below(random, bytes.size())] = static_cast<std::byte>(random());
    break;
  case 2: {
    const auto size = std::min<std::size_t>(std::size_t{1} << random() % 4, bytes.size());
    write_number(std::span{bytes}.subspan(below(random, bytes.size() - size + 1), size),
                 numbers[below(random, numbers.size())]);
    break;
  }
  case 3:
    bytes.resize(below(random, bytes.size() + 1));
    break;
  default: {
    const auto more = random_bytes(random, below(random, 64));
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(random, bytes.size() + 1)), more.begin(),
                 more.end());
  }
  }
}

/// Damages a message. In most cases its header still says how long it is, so that what follows is read as messages.
inline void damage_message(byte_string& message, random_source& random) {
  static constexpr std::array<std::size_t, 6> fields{0, 3, 4, 8, 16, 24};
  const auto in_header = random() % 3 == 0 && message.size() >= basp_header_bytes;
  if (in_header) {
    const auto field = fields[below(random, fields.size())];
    const auto size = field < 4 ? std::size_t{1} : field < 8 ? std::size_t{4} : std::size_t{8};
    const auto place = std::span{message}.subspan(field, size);
    const auto value = random() % 2 == 0 ? random() >> random() % 64 : random() % 8;
    write_number(place, random() % 4 == 0 ? value << 60 : value);
    return;
  }
  damage(message, random);
  if (message.size() >= basp_header_bytes && random() % 8 != 0)
    write_number(std::span{message}.subspan(4, 4), message.size() - basp_header_bytes);
}

/// A conversation whose messages were damaged, left out, repeated or exchanged. The first one, the handshake, stays
/// whole in most.
inline void mutate(std::vector<byte_string>& messages, random_source& random) {
  for (auto changes = 1 + random() % 4; changes > 0 && messages.size() > 1; --changes) {
    const auto first = random() % 8 == 0 ? std::size_t{0} : std::size_t{1};
    const auto at = first + below(random, messages.size() - first);
    const auto other = first + below(random, messages.size() - first);
    switch (random() % 8) {
    case 0:
      messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(other), byte_string{messages[at]});
      break;
    case 1:
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2:
      std::swap(messages[at], messages[other]);
      break;
    default:
      damage_message(messages[at], random);
    }
  }
}

} // namespace troupe::testing
