#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Which requests a dashboard answers. Plain functions, without a socket.
namespace troupe::runtime {

struct request_facts {
  std::string_view method;
  /// The headers of these names; empty if absent.
  std::string_view host;
  std::string_view origin;
  std::string_view fetch_site;
  std::string_view authorization;
  std::string_view cookie;
  /// X-Troupe-Request, which no page of another site can send without asking first.
  std::string_view own_header;
};

enum class verdict {
  allowed,
  /// The Host header names another server: a name of a stranger's that leads here (DNS rebinding).
  wrong_host,
  /// A page of another site wants to change something.
  cross_site,
  /// Without the token, or with another.
  no_token,
};

class request_guard {
 public:
  /// `host` is where the server listens, `token` may be empty. The cookie's name has the port in it, because browsers
  /// send cookies to all ports of a host.
  request_guard(const std::string& host, std::uint16_t port, std::string token);

  [[nodiscard]] verdict judge(const request_facts& facts) const;
  /// In a time that does not depend on how much of it is right.
  [[nodiscard]] bool is_token(std::string_view given) const;
  [[nodiscard]] const std::string& cookie_name() const noexcept { return cookie_name_; }
  [[nodiscard]] bool asks_for_token() const noexcept { return !token_.empty(); }

 private:
  [[nodiscard]] bool is_own_host(std::string_view host) const;
  [[nodiscard]] bool has_token(const request_facts& facts) const;

  std::string host_;
  std::string token_;
  std::string cookie_name_;
};

/// "127.0.0.1", "::1", also in brackets.
[[nodiscard]] bool is_ip_address(std::string_view text);

} // namespace troupe::runtime
