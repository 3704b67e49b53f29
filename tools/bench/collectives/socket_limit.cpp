#include "socket_limit.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>

namespace troupe::bench {

namespace {

using collectives::unique_fd;

void require(bool is_well, const char* what) {
  if (!is_well)
    throw std::runtime_error{std::string{what} + ": " + std::strerror(errno)};
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in result = {};
  result.sin_family = AF_INET;
  result.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  result.sin_port = port;
  return result;
}

unique_fd tcp_socket() {
  auto result = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  require(result.get() >= 0, "socket");
  return result;
}

/// How many looks at a socket without a byte before the kernel is asked to wait: ranks that share a core yield to each
/// other meanwhile.
constexpr int looks = 50;

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

} // namespace

plain_sockets::plain_sockets(rank_link& link) : rank_(link.rank()), peers_(link.size()) {
  const auto listener = tcp_socket();
  auto address = loopback(0);
  auto size = socklen_t{sizeof(address)};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  require(::bind(listener.get(), generic, size) == 0, "bind");
  require(::listen(listener.get(), static_cast<int>(link.size())) == 0, "listen");
  require(::getsockname(listener.get(), generic, &size) == 0, "getsockname");
  const auto ports = link.exchange({reinterpret_cast<const char*>(&address.sin_port), sizeof(address.sin_port)});
  for (std::uint32_t peer = 0; peer < rank_; ++peer) {
    std::uint16_t port = 0;
    std::memcpy(&port, ports[peer].data(), sizeof(port));
    const auto theirs = loopback(port);
    peers_[peer] = tcp_socket();
    require(::connect(peers_[peer].get(), reinterpret_cast<const sockaddr*>(&theirs), sizeof(theirs)) == 0, "connect");
    require(::send(peers_[peer].get(), &rank_, sizeof(rank_), MSG_NOSIGNAL) == sizeof(rank_), "send");
  }
  for (auto left = link.size() - rank_ - 1; left > 0; --left) {
    auto accepted = unique_fd{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    require(accepted.get() >= 0, "accept");
    std::uint32_t peer = 0;
    require(::recv(accepted.get(), &peer, sizeof(peer), MSG_WAITALL) == sizeof(peer), "recv");
    peers_.at(peer) = std::move(accepted);
  }
  const auto on = 1;
  for (const auto& socket : peers_)
    if (socket.get() >= 0)
      require(::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0, "setsockopt");
}

void plain_sockets::sum(std::span<float> data) {
  const auto ranks = peers_.size();
  const auto begin = [&](std::size_t rank) { return data.size() * rank / ranks; };
  const auto slice = [&](std::size_t rank) { return data.subspan(begin(rank), begin(rank + 1) - begin(rank)); };
  const auto mine = slice(rank_);
  received_.resize(mine.size() * ranks);
  const auto from = [&](std::uint32_t peer) { return std::span{received_}.subspan(peer * mine.size(), mine.size()); };
  move([&](std::uint32_t peer) { return std::as_bytes(slice(peer)); },
       [&](std::uint32_t peer) { return std::as_writable_bytes(from(peer)); });
  for (std::uint32_t peer = 0; peer < ranks; ++peer)
    if (peer != rank_)
      for (std::size_t i = 0; i < mine.size(); ++i)
        mine[i] += from(peer)[i];
  move([&](std::uint32_t) { return std::as_bytes(mine); },
       [&](std::uint32_t peer) { return std::as_writable_bytes(slice(peer)); });
}

void plain_sockets::move(const std::function<std::span<const std::byte>(std::uint32_t)>& out,
                         const std::function<std::span<std::byte>(std::uint32_t)>& in) {
  struct transfer {
    int socket;
    std::span<const std::byte> out;
    std::span<std::byte> in;
  };
  std::vector<transfer> open;
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer)
    if (peer != rank_)
      open.push_back({peers_[peer].get(), out(peer), in(peer)});
  for (auto idle = 0;;) {
    auto moved = false;
    for (auto& x : open) {
      if (!x.out.empty()) {
        const auto sent = ::send(x.socket, x.out.data(), x.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        require(sent >= 0 || would_block(), "send");
        if (sent > 0) {
          x.out = x.out.subspan(static_cast<std::size_t>(sent));
          moved = true;
        }
      }
      if (!x.in.empty()) {
        const auto received = ::recv(x.socket, x.in.data(), x.in.size(), MSG_DONTWAIT);
        require(received > 0 || (received < 0 && would_block()), "recv");
        if (received > 0) {
          x.in = x.in.subspan(static_cast<std::size_t>(received));
          moved = true;
        }
      }
    }
    std::erase_if(open, [](const transfer& x) { return x.out.empty() && x.in.empty(); });
    if (open.empty())
      return;
    if (moved) {
      idle = 0;
    } else if (++idle < looks) {
      ::sched_yield();
    } else {
      std::vector<pollfd> awaited;
      for (const auto& x : open)
        awaited.push_back(
            {x.socket, static_cast<short>((x.in.empty() ? 0 : POLLIN) | (x.out.empty() ? 0 : POLLOUT)), 0});
      require(::poll(awaited.data(), awaited.size(), -1) > 0 || errno == EINTR, "poll");
    }
  }
}

} // namespace troupe::bench
