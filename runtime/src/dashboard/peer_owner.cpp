#include "dashboard/peer_owner.hpp"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace troupe::runtime {

namespace {

/// The port of "0100007F:1F90".
std::optional<std::uint16_t> port_of(std::string_view address) {
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos)
    return std::nullopt;
  const auto digits = address.substr(colon + 1);
  std::uint16_t result = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), result, 16);
  return code == std::errc{} && end == digits.data() + digits.size() ? std::optional{result} : std::nullopt;
}

/// 127.0.0.0/8, ::1, and the former as IPv6, in the byte order of the file.
bool is_loopback_text(std::string_view address) {
  const auto host = address.substr(0, address.rfind(':'));
  return (host.size() == 8 && host.ends_with("7F")) || host == "00000000000000000000000001000000" ||
         (host.starts_with("0000000000000000FFFF0000") && host.ends_with("7F"));
}

} // namespace

std::optional<uid_t> find_loopback_owner(std::istream& table, std::uint16_t peer_port, std::uint16_t own_port) {
  for (std::string line; std::getline(table, line);) {
    auto words = std::istringstream{line};
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    std::string queues;
    std::string timer;
    std::string retransmits;
    uid_t owner = 0;
    constexpr auto established = "01";
    if (words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> owner &&
        state == established && port_of(local) == peer_port && port_of(remote) == own_port && is_loopback_text(local))
      return owner;
  }
  return std::nullopt;
}

std::optional<uid_t> owner_of_loopback_peer(std::uint16_t peer_port, std::uint16_t own_port) {
  for (const auto* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    auto table = std::ifstream{path};
    if (const auto owner = find_loopback_owner(table, peer_port, own_port))
      return owner;
  }
  return std::nullopt;
}

} // namespace troupe::runtime
