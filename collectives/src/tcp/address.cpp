#include "tcp/address.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <span>
#include <system_error>
#include <type_traits>

namespace troupe::collectives::tcp {

namespace {

/// Many may connect before the forming thread accepts them.
constexpr int backlog = 1024;

std::string text_of(int code) {
  return std::generic_category().message(code);
}

const sockaddr_in& as_ipv4(const address& x) noexcept {
  return *reinterpret_cast<const sockaddr_in*>(x.data());
}

const sockaddr_in6& as_ipv6(const address& x) noexcept {
  return *reinterpret_cast<const sockaddr_in6*>(x.data());
}

/// 0, or the error number.
int bind_and_listen(const unique_fd& socket, const address& at) {
  // A port of the range may still have connections of an earlier group.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), at.data(), at.size_bytes()) != 0 || ::listen(socket.get(), backlog) != 0)
    return errno;
  return 0;
}

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

bool can_bind(const address& at) {
  const unique_fd socket{::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
  return socket && ::bind(socket.get(), at.data(), at.size_bytes()) == 0;
}

} // namespace

address::address(const sockaddr* data, socklen_t size_bytes) noexcept
    : size_bytes_(std::min<socklen_t>(size_bytes, sizeof(storage_))) {
  std::memcpy(&storage_, data, size_bytes_);
}

std::uint16_t address::port() const noexcept {
  return ntohs(family() == AF_INET6 ? as_ipv6(*this).sin6_port : as_ipv4(*this).sin_port);
}

void address::set_port(std::uint16_t port) noexcept {
  auto& place = family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage_).sin6_port
                                     : reinterpret_cast<sockaddr_in&>(storage_).sin_port;
  place = htons(port);
}

bool address::has_host_of(const address& other) const noexcept {
  if (family() != other.family())
    return false;
  if (family() == AF_INET6)
    return std::memcmp(&as_ipv6(*this).sin6_addr, &as_ipv6(other).sin6_addr, sizeof(in6_addr)) == 0;
  return as_ipv4(*this).sin_addr.s_addr == as_ipv4(other).sin_addr.s_addr;
}

std::string to_string(const address& x) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (x.family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &as_ipv6(x).sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), x.port());
  }
  ::inet_ntop(AF_INET, &as_ipv4(x).sin_addr, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), x.port());
}

expected<address> resolve_own_host(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const auto code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0)
    return fail(errc::unreachable,
                fmt::format("host '{}' does not resolve ({}); set the name or address at which peers reach this host",
                            host, ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned{found, &::freeaddrinfo};
  for (const auto* x = found; x != nullptr; x = x->ai_next) {
    const address candidate{x->ai_addr, x->ai_addrlen};
    if ((x->ai_family == AF_INET || x->ai_family == AF_INET6) && can_bind(candidate))
      return candidate;
  }
  return fail(errc::unreachable,
              fmt::format("host '{}' is not an address of this machine; set its own name or address", host));
}

expected<listener> listen_at(address host, const std::optional<port_range>& ports) {
  const auto range = ports.value_or(port_range{});
  auto last_error = 0;
  for (std::uint32_t port = range.first; port <= range.last; ++port) {
    unique_fd socket{::socket(host.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!socket)
      return fail(errc::unreachable, fmt::format("no socket to listen with: {}; raise the limit of open files, or end "
                                                 "other programs",
                                                 text_of(errno)));
    host.set_port(static_cast<std::uint16_t>(port));
    last_error = bind_and_listen(socket, host);
    if (last_error != 0)
      continue;
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    return listener{std::move(socket), address{reinterpret_cast<const sockaddr*>(&bound), size}};
  }
  host.set_port(range.first);
  return fail(errc::unreachable,
              ports ? fmt::format("no port from {} to {} of {} is free: {}; a host needs one for each of its workers",
                                  range.first, range.last, to_string(host), text_of(last_error))
                    : fmt::format("cannot listen at {}: {}; set an address of this host", to_string(host),
                                  text_of(last_error)));
}

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
