#include <troupe/collectives/listener.hpp>

#include "tcp/address.hpp"
#include "tcp/error_text.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>

namespace troupe::collectives::tcp {

namespace {

/// Many may connect before the forming thread accepts them.
constexpr int backlog = 1024;

/// 0, or the error number.
int bind_and_listen(const unique_fd& socket, const address& at) {
  // A port of the range may still have connections of an earlier group.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), at.data(), at.size_bytes()) != 0 || ::listen(socket.get(), backlog) != 0)
    return errno;
  return 0;
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

bool is_loopback(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const auto text = std::string{host};
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1)
    return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1)
    return IN6_IS_ADDR_LOOPBACK(&v6);
  return ::strcasecmp(text.c_str(), "localhost") == 0;
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
  host.set_port(0);
  return fail(
      errc::unreachable,
      ports
          ? fmt::format("no port of cluster.ports, {}, is free at {} ({}): a host needs two for each of its "
                        "workers, and the driver's host one more. Give a wider range, or end what else listens "
                        "there",
                        to_string(*ports), to_string(host), text_of(last_error))
          : fmt::format("cannot listen at {}: {}; set an address of this host", to_string(host), text_of(last_error)));
}

} // namespace troupe::collectives::tcp
