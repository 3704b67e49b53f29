#include "tcp/address.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <array>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <type_traits>

namespace troupe::collectives::tcp {

namespace {

/// The parts of a blob.
constexpr unsigned blob_format = 0xa0;
constexpr unsigned encrypted_flag = 1;
constexpr unsigned ipv6_flag = 2;
constexpr std::size_t tag_offset = 1;
constexpr std::size_t port_offset = tag_offset + sizeof(std::uint32_t);
constexpr std::size_t host_offset = port_offset + sizeof(std::uint16_t);

template <class T>
void append(std::string& to, const T& what) {
  static_assert(std::is_trivially_copyable_v<T>);
  to.append(reinterpret_cast<const char*>(&what), sizeof(what));
}

template <class T>
T read_at(const std::string& from, std::size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T result;
  std::memcpy(&result, from.data() + offset, sizeof(result));
  return result;
}

/// Says of which group a blob is, and of which of its ranks: a digest, against mistakes and not against malice.
std::uint32_t group_tag(const tcp_options& options, std::uint32_t rank) {
  const std::array<std::uint64_t, 2> what{options.generation.value, std::uint64_t{options.world_size} << 32 | rank};
  return static_cast<std::uint32_t>(serialization::xxh3(std::as_bytes(std::span{what})));
}

} // namespace

std::string describe(const tcp_options& options) {
  return fmt::format("rank {} of {}, generation {}", options.rank, options.world_size, options.generation);
}

std::string encode(const tcp_options& options, const address& at) {
  const auto is_ipv6 = at.family() == AF_INET6;
  const auto flags = (is_ipv6 ? ipv6_flag : 0u) | (options.encrypted ? encrypted_flag : 0u);
  std::string result{static_cast<char>(blob_format | flags)};
  append(result, group_tag(options, options.rank.value));
  append(result, htons(at.port()));
  if (is_ipv6)
    append(result, as_ipv6(at).sin6_addr);
  else
    append(result, as_ipv4(at).sin_addr);
  return result;
}

expected<address> decode(const tcp_options& options, std::uint32_t peer, const std::string& blob) {
  const auto foreign = [&] {
    return fail(errc::mismatch, fmt::format("{}: the blob of rank {} is not from this generation and group; exchange "
                                            "among exactly its members, in rank order",
                                            describe(options), peer));
  };
  const auto head = blob.empty() ? 0u : static_cast<std::uint8_t>(blob[0]);
  const auto is_ipv6 = (head & ipv6_flag) != 0;
  if ((head & ~(ipv6_flag | encrypted_flag)) != blob_format ||
      blob.size() != host_offset + (is_ipv6 ? sizeof(in6_addr) : sizeof(in_addr)) ||
      read_at<std::uint32_t>(blob, tag_offset) != group_tag(options, peer))
    return foreign();
  if (const auto encrypts = (head & encrypted_flag) != 0; encrypts != options.encrypted)
    return fail(errc::mismatch, fmt::format("{}: rank {} {} its messages and this rank does not agree; set encryption "
                                            "equally on all ranks",
                                            describe(options), peer, encrypts ? "encrypts" : "does not encrypt"));
  if (is_ipv6) {
    sockaddr_in6 result{};
    result.sin6_family = AF_INET6;
    result.sin6_port = read_at<std::uint16_t>(blob, port_offset);
    result.sin6_addr = read_at<in6_addr>(blob, host_offset);
    return address{reinterpret_cast<const sockaddr*>(&result), sizeof(result)};
  }
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = read_at<std::uint16_t>(blob, port_offset);
  result.sin_addr = read_at<in_addr>(blob, host_offset);
  return address{reinterpret_cast<const sockaddr*>(&result), sizeof(result)};
}

} // namespace troupe::collectives::tcp
