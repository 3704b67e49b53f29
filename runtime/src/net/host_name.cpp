#include "net/host_name.hpp"

#include <troupe/collectives/listener.hpp>
#include <troupe/runtime/keys.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <optional>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// The canonical form of an address of one family, if `text` is one.
template <int Family>
std::optional<std::string> canonical_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  std::array<char, INET6_ADDRSTRLEN> result{};
  if (inet_pton(Family, text.c_str(), address.data()) != 1)
    return std::nullopt;
  inet_ntop(Family, address.data(), result.data(), result.size());
  return result.data();
}

std::string without_brackets(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::string{host};
}

} // namespace

expected<host_name> parse_host(std::string_view host) {
  auto text = without_brackets(host);
  if (auto address = canonical_address<AF_INET>(text))
    return host_name{*address, true};
  if (auto address = canonical_address<AF_INET6>(text))
    return host_name{*address, true};
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_'; };
  if (text.empty() || text.size() > 253 || !std::ranges::all_of(text, allowed) || text.front() == '.' ||
      text.front() == '-')
    return fail(errc::invalid_argument,
                fmt::format("'{}' is not a host name or address; give the one by which other hosts reach it", host));
  if (text == "ca")
    return fail(errc::invalid_argument,
                "the name 'ca' is reserved for the cluster's authority; give this host's full name or address");
  return host_name{text, false};
}

bool is_any_address(std::string_view host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "[::]" || host == "*";
}

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0)
    return "localhost";
  return name.data();
}

bool is_loopback(std::string_view host) {
  return collectives::tcp::is_loopback(host);
}

} // namespace troupe::runtime
