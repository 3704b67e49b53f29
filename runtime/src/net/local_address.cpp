#include <troupe/runtime/local_address.hpp>

#include <troupe/collectives/unique_fd.hpp>

#include <memory>
#include <netdb.h>
#include <sys/socket.h>

namespace troupe::runtime {

using collectives::unique_fd;

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
