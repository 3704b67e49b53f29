#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::testing {

/// A port of this host that forwards connections to another, until they are broken: a network between two processes.
class breakable_link {
 public:
  /// `target`: HOST:PORT, an address in numbers.
  explicit breakable_link(const std::string& target) : target_(parse(target)) {
    listen_at(0);
    thread_ = std::thread{[this] { forward(); }};
  }
  ~breakable_link() {
    {
      auto lock = std::lock_guard{mutex_};
      ends_ = true;
    }
    thread_.join();
    reset();
    refuse();
  }
  breakable_link(const breakable_link&) = delete;
  breakable_link& operator=(const breakable_link&) = delete;

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  /// Resets all connections; what is on its way is lost.
  void reset() {
    auto lock = std::lock_guard{mutex_};
    for (auto& [near, far] : pairs_)
      for (auto fd : {near, far}) {
        const auto at_once = linger{1, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        ::close(fd);
      }
    pairs_.clear();
  }

  /// Refuses new connections until `accept` is called.
  void refuse() {
    auto lock = std::lock_guard{mutex_};
    if (listener_ >= 0)
      ::close(std::exchange(listener_, -1));
  }

  void accept() {
    auto lock = std::lock_guard{mutex_};
    if (listener_ < 0)
      listen_at(port_);
  }

 private:
  static sockaddr_in parse(const std::string& text) {
    const auto colon = text.rfind(':');
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(static_cast<std::uint16_t>(std::stoul(text.substr(colon + 1))));
    if (::inet_pton(AF_INET, text.substr(0, colon).c_str(), &result.sin_addr) != 1)
      throw std::runtime_error{"no address in numbers: " + text};
    return result;
  }

  static int checked(int code, const char* what) {
    if (code < 0)
      throw std::system_error{errno, std::generic_category(), what};
    return code;
  }

  void listen_at(std::uint16_t port) {
    listener_ = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    const auto yes = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    auto where = parse("127.0.0.1:" + std::to_string(port));
    auto* any = reinterpret_cast<sockaddr*>(&where);
    socklen_t size = sizeof(where);
    checked(::bind(listener_, any, size), "bind");
    checked(::listen(listener_, 64), "listen");
    checked(::getsockname(listener_, any, &size), "getsockname");
    port_ = ntohs(where.sin_port);
  }

  void take_connection() {
    const auto near = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (near < 0)
      return;
    const auto far = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    const auto yes = 1;
    for (auto fd : {near, far})
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (::connect(far, reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) == 0) {
      pairs_.emplace_back(near, far);
    } else {
      ::close(near);
      ::close(far);
    }
  }

  /// False at the end of the stream.
  static bool copy(int from, int to) {
    std::array<char, 65536> buffer;
    const auto size = ::recv(from, buffer.data(), buffer.size(), 0);
    for (ssize_t sent = 0; sent < size;) {
      const auto n = ::send(to, buffer.data() + sent, static_cast<std::size_t>(size - sent), MSG_NOSIGNAL);
      if (n <= 0)
        return false;
      sent += n;
    }
    return size > 0;
  }

  void forward() {
    for (;;) {
      std::vector<pollfd> waiting;
      {
        auto lock = std::lock_guard{mutex_};
        if (ends_)
          return;
        if (listener_ >= 0)
          waiting.push_back({listener_, POLLIN, 0});
        for (const auto& [near, far] : pairs_) {
          waiting.push_back({near, POLLIN, 0});
          waiting.push_back({far, POLLIN, 0});
        }
      }
      ::poll(waiting.data(), waiting.size(), 10);
      auto lock = std::lock_guard{mutex_};
      const auto is_ready = [&](int fd) {
        return std::any_of(waiting.begin(), waiting.end(), [&](const pollfd& x) { return x.fd == fd && x.revents; });
      };
      if (listener_ >= 0 && is_ready(listener_))
        take_connection();
      for (auto i = pairs_.begin(); i != pairs_.end();) {
        const auto [near, far] = *i;
        const auto lives = (!is_ready(near) || copy(near, far)) && (!is_ready(far) || copy(far, near));
        if (!lives) {
          ::close(near);
          ::close(far);
          i = pairs_.erase(i);
        } else {
          ++i;
        }
      }
    }
  }

  sockaddr_in target_;
  std::mutex mutex_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::list<std::pair<int, int>> pairs_;
  bool ends_ = false;
  std::thread thread_;
};

} // namespace troupe::testing
