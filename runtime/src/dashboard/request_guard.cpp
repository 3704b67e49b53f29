#include "dashboard/request_guard.hpp"

#include "net/host_name.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// "localhost:8265" without the port and in lower case.
std::string name_of(std::string_view host) {
  if (host.starts_with('['))
    host = host.substr(0, host.find(']') + 1);
  else if (const auto colon = host.rfind(':'); colon != std::string_view::npos && host.find(':') == colon)
    host = host.substr(0, colon);
  auto result = std::string{host};
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    const auto end = std::min(cookies.find(';'), cookies.size());
    auto each = cookies.substr(0, end);
    cookies.remove_prefix(std::min(end + 1, cookies.size()));
    while (each.starts_with(' '))
      each.remove_prefix(1);
    if (each.size() > name.size() && each.starts_with(name) && each[name.size()] == '=')
      return each.substr(name.size() + 1);
  }
  return {};
}

} // namespace

bool is_ip_address(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']'))
    text = text.substr(1, text.size() - 2);
  std::array<unsigned char, 16> address{};
  const auto terminated = std::string{text};
  return ::inet_pton(AF_INET, terminated.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, terminated.c_str(), address.data()) == 1;
}

request_guard::request_guard(const std::string& host, std::uint16_t port, std::string token)
    : host_(name_of(host)), token_(std::move(token)), cookie_name_(fmt::format("troupe-dashboard-{}", port)) {}

verdict request_guard::judge(const request_facts& facts) const {
  if (!is_own_host(facts.host))
    return verdict::wrong_host;
  const auto changes = facts.method != "GET" && facts.method != "HEAD";
  const auto is_own_origin = facts.origin.empty() || facts.origin == fmt::format("http://{}", facts.host) ||
                             facts.origin == fmt::format("https://{}", facts.host);
  const auto is_own_site = facts.fetch_site.empty() || facts.fetch_site == "same-origin";
  if (changes && (!is_own_origin || !is_own_site || facts.own_header.empty()))
    return verdict::cross_site;
  return has_token(facts) ? verdict::allowed : verdict::no_token;
}

bool request_guard::is_token(std::string_view given) const {
  return given.size() == token_.size() && ::CRYPTO_memcmp(given.data(), token_.data(), token_.size()) == 0;
}

/// An address cannot be rebound to another; a name can, unless it is this machine's own.
bool request_guard::is_own_host(std::string_view host) const {
  const auto name = name_of(host);
  return is_ip_address(name) || name == "localhost" || name == host_ || name == name_of(this_host());
}

bool request_guard::has_token(const request_facts& facts) const {
  constexpr std::string_view bearer = "Bearer ";
  if (token_.empty())
    return true;
  if (facts.authorization.starts_with(bearer))
    return is_token(facts.authorization.substr(bearer.size()));
  return is_token(cookie_value(facts.cookie, cookie_name_));
}

} // namespace troupe::runtime
