#pragma once

#include <processes.hpp>

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/keys.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

/// Peers that are not Troupe: strangers, holders of a peer's keys, and what they see of a process from outside.
namespace troupe::testing {

using collectives::unique_fd;
using byte_string = std::vector<std::byte>;
using random_source = std::mt19937_64;

/// No number below `bound`; `bound` is not 0.
inline std::size_t below(random_source& random, std::size_t bound) {
  return static_cast<std::size_t>(random() % bound);
}

inline byte_string random_bytes(random_source& random, std::size_t size) {
  byte_string result(size);
  for (auto& each : result)
    each = static_cast<std::byte>(random());
  return result;
}

inline std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

/// A connection to a port of loopback, on which nothing blocks for long; empty if nobody listens there.
inline unique_fd dial(std::uint16_t port) {
  unique_fd result{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (result.get() < 0)
    throw std::runtime_error{"cannot make a socket"};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  const timeval patience{2, 0};
  ::setsockopt(result.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(result.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  const auto on = 1;
  ::setsockopt(result.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(result.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0)
    result.reset();
  return result;
}

inline void send_bytes(const unique_fd& to, std::span<const std::byte> bytes) {
  (void)::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Ends it so that the other side's next call fails.
inline void reset(unique_fd socket) {
  const linger at_once{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

/// Whether the other side has ended it. Discards what it has sent.
inline bool is_over(const unique_fd& socket) {
  std::array<std::byte, 4096> ignored{};
  for (;;) {
    const auto count = ::recv(socket.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (count > 0)
      continue;
    return count == 0 || (errno != EAGAIN && errno != EINTR);
  }
}

/// TLS connections with a peer's keys.
class tls_dialler {
 public:
  explicit tls_dialler(const runtime::tls_files& keys) : context_(::SSL_CTX_new(::TLS_client_method())) {
    if (::SSL_CTX_use_certificate_chain_file(context_.get(), keys.certificate.c_str()) != 1 ||
        ::SSL_CTX_use_PrivateKey_file(context_.get(), keys.key.c_str(), SSL_FILETYPE_PEM) != 1)
      throw std::runtime_error{"cannot use the keys"};
  }

  struct deleter {
    void operator()(SSL_CTX* x) const { ::SSL_CTX_free(x); }
    void operator()(SSL* x) const { ::SSL_free(x); }
  };

  class connection {
   public:
    connection(unique_fd socket, SSL_CTX* context) : socket_(std::move(socket)), session_(::SSL_new(context)) {
      ::SSL_set_fd(session_.get(), socket_.get());
      is_open_ = socket_ && ::SSL_connect(session_.get()) == 1;
      ::ERR_clear_error();
    }

    [[nodiscard]] bool is_open() const noexcept { return is_open_; }

    void send(std::span<const std::byte> bytes) {
      if (is_open_ && !bytes.empty())
        is_open_ = ::SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
      ::ERR_clear_error();
    }

    /// Fewer bytes if the other end is gone, or silent for long.
    [[nodiscard]] byte_string receive(std::size_t size) {
      byte_string result(size);
      std::size_t done = 0;
      while (is_open_ && done < size) {
        const auto count = ::SSL_read(session_.get(), &result[done], static_cast<int>(size - done));
        is_open_ = count > 0;
        done += count > 0 ? static_cast<std::size_t>(count) : 0;
      }
      ::ERR_clear_error();
      result.resize(done);
      return result;
    }

    /// Says that there is no more to come, so that the other end reads all of it.
    void finish() {
      if (is_open_)
        ::SSL_shutdown(session_.get());
      ::ERR_clear_error();
    }

   private:
    unique_fd socket_;
    std::unique_ptr<SSL, deleter> session_;
    bool is_open_ = false;
  };

  [[nodiscard]] connection connect(std::uint16_t port) const { return {dial(port), context_.get()}; }

  /// What a client says first.
  [[nodiscard]] byte_string hello() const {
    const auto session = std::unique_ptr<SSL, deleter>{::SSL_new(context_.get())};
    auto* out = ::BIO_new(::BIO_s_mem());
    ::SSL_set_bio(session.get(), ::BIO_new(::BIO_s_mem()), out);
    ::SSL_connect(session.get());
    ::ERR_clear_error();
    char* bytes = nullptr;
    const auto size = BIO_get_mem_data(out, &bytes);
    const auto* first = reinterpret_cast<const std::byte*>(bytes);
    return {first, first + size};
  }

 private:
  std::unique_ptr<SSL_CTX, deleter> context_;
};

/// Passes connections on to a port, and keeps what the first one carries.
class recording_proxy {
 public:
  explicit recording_proxy(std::uint16_t target) : target_(target) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(listener_.get(), 16) != 0)
      throw std::runtime_error{"cannot listen"};
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  /// What the side that dialled has said so far, and the other one.
  [[nodiscard]] byte_string of_dialler() const { return copy(dialler_); }
  [[nodiscard]] byte_string of_acceptor() const { return copy(acceptor_); }

 private:
  byte_string copy(const byte_string& x) const {
    const auto lock = std::lock_guard{mutex_};
    return x;
  }

  void run(const std::stop_token& stop) {
    for (auto is_first = true; !stop.stop_requested();) {
      auto waiting = pollfd{listener_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 50) <= 0)
        continue;
      auto client = unique_fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      auto server = dial(target_);
      connections_.emplace_back([this, keep = std::exchange(is_first, false), a = std::move(client),
                                 b = std::move(server)](const std::stop_token& over) { pass_on(over, a, b, keep); });
    }
  }

  void pass_on(const std::stop_token& stop, const unique_fd& a, const unique_fd& b, bool keep) {
    std::array<std::byte, 16'384> buffer{};
    while (!stop.stop_requested()) {
      auto waiting = std::array{pollfd{a.get(), POLLIN, 0}, pollfd{b.get(), POLLIN, 0}};
      if (::poll(waiting.data(), waiting.size(), 50) <= 0)
        continue;
      for (auto i = 0; i < 2; ++i) {
        if (waiting[static_cast<std::size_t>(i)].revents == 0)
          continue;
        const auto count = ::recv((i == 0 ? a : b).get(), buffer.data(), buffer.size(), 0);
        if (count <= 0)
          return;
        const auto bytes = std::span{buffer}.first(static_cast<std::size_t>(count));
        send_bytes(i == 0 ? b : a, bytes);
        const auto lock = std::lock_guard{mutex_};
        auto& kept = i == 0 ? dialler_ : acceptor_;
        if (keep)
          kept.insert(kept.end(), bytes.begin(), bytes.end());
      }
    }
  }

  std::uint16_t target_;
  unique_fd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  byte_string dialler_;
  byte_string acceptor_;
  std::vector<std::jthread> connections_;
  std::jthread thread_;
};

/// The ports of TCP sockets of a process that listen.
inline std::vector<std::uint16_t> listening_ports(pid_t pid) {
  std::set<std::string> sockets;
  auto code = std::error_code{};
  const auto descriptors = std::filesystem::path{"/proc"} / std::to_string(pid) / "fd";
  for (const auto& entry : std::filesystem::directory_iterator{descriptors, code}) {
    const auto name = std::filesystem::read_symlink(entry.path(), code).string();
    if (name.starts_with("socket:["))
      sockets.insert(name.substr(8, name.size() - 9));
  }
  std::vector<std::uint16_t> result;
  for (const auto* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in{table};
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      auto fields = std::istringstream{line};
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      std::string field;
      fields >> number >> local >> remote >> state;
      // tx_queue:rx_queue, tr:tm->when, retrnsmt, uid, timeout, inode
      for (auto i = 0; i < 6; ++i)
        fields >> field;
      // Those that listen come first, and there may be thousands of others.
      if (state != "0A")
        break;
      if (sockets.contains(field))
        result.push_back(static_cast<std::uint16_t>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
    }
  }
  return result;
}

/// Its connections. A run opens its files when it first writes to them, which has nothing to do with its peers.
inline std::size_t connections_of(pid_t pid) {
  auto code = std::error_code{};
  std::size_t result = 0;
  for (const auto& each :
       std::filesystem::directory_iterator{std::filesystem::path{"/proc"} / std::to_string(pid) / "fd", code})
    if (std::filesystem::read_symlink(each.path(), code).string().starts_with("socket:"))
      ++result;
  return result;
}

/// Memory of its own that it has touched, wherever the system keeps it.
inline std::int64_t memory_kib(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto number = [&](const std::string& name) {
    const auto mark = text.find(name);
    return mark == std::string::npos ? 0 : std::stoll(text.substr(mark + name.size()));
  };
  return number("RssAnon:") + number("VmSwap:");
}

} // namespace troupe::testing
