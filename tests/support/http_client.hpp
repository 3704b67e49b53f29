#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>

/// HTTP/1.1 over a plain socket, for tests of servers: it sends what it is told to, valid or not.
namespace troupe::testing {

struct http_response {
  int status = 0;
  /// By lower-case name.
  std::map<std::string, std::string> headers;
  std::string body;
};

/// A request that asks for a response with a body.
inline std::string http_request(const std::string& method, const std::string& path, const std::string& body = {},
                                const std::map<std::string, std::string>& more = {}) {
  std::string result = method + " " + path + " HTTP/1.1\r\n";
  auto headers = more;
  headers.emplace("Host", "localhost");
  if (method == "POST")
    headers.emplace("Content-Length", std::to_string(body.size()));
  for (const auto& [name, value] : headers)
    result += name + ": " + value + "\r\n";
  return result + "\r\n" + body;
}

/// One connection to 127.0.0.1.
class http_client {
 public:
  explicit http_client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Far more than any test needs: a hang fails.
    const timeval limit{60, 0};
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    is_connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  http_client(const http_client&) = delete;
  http_client& operator=(const http_client&) = delete;
  ~http_client() { ::close(socket_); }

  [[nodiscard]] bool is_connected() const noexcept { return is_connected_; }
  [[nodiscard]] int socket() const noexcept { return socket_; }

  /// False if the connection is broken.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const auto count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0)
        return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  void end_sending() const { ::shutdown(socket_, SHUT_WR); }

  /// The next response; nothing if the connection ends before it is complete. `with_body`: not after HEAD.
  std::optional<http_response> receive(bool with_body = true) {
    auto end = std::string::npos;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
      if (!fill())
        return std::nullopt;
    http_response result;
    const auto head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    result.status = std::atoi(head.c_str() + head.find(' '));
    for (auto begin = head.find("\r\n") + 2; begin < head.size();) {
      const auto next = head.find("\r\n", begin);
      const auto colon = head.find(':', begin);
      auto name = head.substr(begin, colon - begin);
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      result.headers[name] = head.substr(colon + 2, next - colon - 2);
      begin = next + 2;
    }
    const auto size = std::strtoull(result.headers["content-length"].c_str(), nullptr, 10);
    while (with_body && buffer_.size() < size)
      if (!fill())
        return std::nullopt;
    if (with_body) {
      result.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    }
    return result;
  }

  /// Whether the peer has sent anything of a response that is not complete.
  [[nodiscard]] bool has_part() const noexcept { return !buffer_.empty(); }

  /// Whether the peer closes the connection.
  bool is_closed_by_peer() { return buffer_.empty() && !fill(); }

  std::optional<http_response> exchange(std::string_view request, bool with_body = true) {
    return send(request) ? receive(with_body) : std::nullopt;
  }

 private:
  bool fill() {
    char bytes[16'384];
    const auto count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count <= 0)
      return false;
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  int socket_;
  bool is_connected_ = false;
  std::string buffer_;
};

/// A request by a connection of its own. Throws without a response.
inline http_response http_exchange(std::uint16_t port, const std::string& request, bool with_body = true) {
  auto client = http_client{port};
  auto result = client.exchange(request, with_body);
  if (!result)
    throw std::runtime_error{"no response to " + request.substr(0, 200)};
  return std::move(*result);
}

} // namespace troupe::testing
