#include "worker/group/nccl_interface.hpp"

#include <arpa/inet.h>
#include <cstdlib>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>

namespace troupe::runtime {

namespace {

constexpr auto interface_variable = "NCCL_SOCKET_IFNAME";
constexpr auto family_variable = "NCCL_SOCKET_FAMILY";

struct found_interface {
  std::string name;
  int family = AF_INET;
};

bool is_same(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family)
    return false;
  if (a.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  return a.sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

expected<found_interface> find_interface(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const auto code = ::getaddrinfo(address.c_str(), nullptr, &hints, &found); code != 0)
    return fail(errc::unreachable, "'" + address + "' is no address of this host: " + ::gai_strerror(code));
  const auto addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{found, &::freeaddrinfo};
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    return fail(errc::unreachable,
                std::string{"the interfaces of this host cannot be listed: "} + std::strerror(errno));
  const auto interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>{first, &::freeifaddrs};
  for (const auto* wanted = found; wanted != nullptr; wanted = wanted->ai_next)
    for (const auto* each = first; each != nullptr; each = each->ifa_next)
      if (each->ifa_addr != nullptr && is_same(*each->ifa_addr, *wanted->ai_addr))
        return found_interface{each->ifa_name, wanted->ai_family};
  return fail(errc::unreachable, "no interface of this host has the address " + address +
                                     ": set NCCL_SOCKET_IFNAME for the workers to the one that NCCL is to use");
}

} // namespace

expected<void> set_nccl_interface(const std::string& address, std::optional<std::string>& set) {
  if (!set && std::getenv(interface_variable) != nullptr)
    return {};
  TROUPE_TRY(auto found, find_interface(address));
  if (set && *set != found.name)
    return fail(errc::unsatisfiable, "it listens on " + *set +
                                         " since it was first opened in this process, and the "
                                         "group is to talk over " +
                                         found.name);
  set = found.name;
  // "=" takes the name as a whole, and not as a prefix.
  ::setenv(interface_variable, ("=" + found.name).c_str(), 0);
  if (found.family == AF_INET6)
    ::setenv(family_variable, "AF_INET6", 0);
  return {};
}

} // namespace troupe::runtime
