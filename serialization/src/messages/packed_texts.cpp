#include <troupe/messages/packed_texts.hpp>

#include <cstddef>
#include <cstdint>

namespace troupe {

namespace {

/// A length as packed: seven bits a byte, the lowest first.
constexpr std::uint8_t more_follows = 0x80;

void append_length(std::string& to, std::size_t length) {
  for (; length >= more_follows; length >>= 7)
    to += static_cast<char>(length | more_follows);
  to += static_cast<char>(length);
}

/// Moves `at` behind the length. False if there is none, or more than can follow.
bool read_length(const std::string& from, std::size_t& at, std::size_t& length) {
  length = 0;
  for (unsigned shift = 0; at < from.size() && shift < 63; shift += 7) {
    const auto next = static_cast<std::uint8_t>(from[at++]);
    length |= std::size_t{next & (more_follows - 1u)} << shift;
    if ((next & more_follows) == 0)
      return length <= from.size() - at;
  }
  return false;
}

} // namespace

std::string pack_texts(const std::vector<std::string>& texts) {
  std::size_t size = 0;
  for (const auto& text : texts)
    size += text.size() + 2;
  std::string result;
  result.reserve(size);
  for (const auto& text : texts) {
    append_length(result, text.size());
    result += text;
  }
  return result;
}

bool unpack_texts(const std::string& packed, std::vector<std::string>& into) {
  into.clear();
  for (std::size_t at = 0; at < packed.size();) {
    std::size_t length = 0;
    if (!read_length(packed, at, length))
      return false;
    into.emplace_back(packed, at, length);
    at += length;
  }
  return true;
}

} // namespace troupe
