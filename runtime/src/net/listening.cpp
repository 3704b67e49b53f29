#include "net/listening.hpp"

#include <arpa/inet.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace troupe::runtime {

using collectives::unique_fd;

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

unique_fd listen_on_any_port(bool loopback) {
  if (!loopback) {
    auto result = unique_fd{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    auto off = 0;
    auto address = sockaddr_in6{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    if (result && ::setsockopt(result.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0 &&
        ::bind(result.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        ::listen(result.get(), SOMAXCONN) == 0)
      return result;
  }
  auto result = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto address = sockaddr_in{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  if (result && ::bind(result.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(result.get(), SOMAXCONN) == 0)
    return result;
  return {};
}

std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &list) != 0)
    return {};
  auto addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{list, ::freeaddrinfo};
  for (auto* each = list; each != nullptr; each = each->ai_next) {
    auto socket = unique_fd{::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0)};
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    char text[NI_MAXHOST] = {};
    if (socket && ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      return text;
  }
  return {};
}

} // namespace troupe::runtime
