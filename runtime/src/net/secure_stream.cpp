#include "net/secure_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How often the stop token is checked.
constexpr auto slice = 100ms;

constexpr std::size_t first_text_bytes = std::size_t{64} << 10;

constexpr auto never = clock::time_point::max();

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

/// Enables keep-alive probes and a limit on unacknowledged data, because a host that disappears sends nothing.
void prepare(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
}

error lost(int code) {
  return {errc::unreachable,
          code == 0 ? "the connection was closed" : fmt::format("the connection was lost: {}", std::strerror(code))};
}

} // namespace

secure_stream::secure_stream(collectives::unique_fd socket, std::stop_token stop)
    : socket_(std::move(socket)), stop_(std::move(stop)) {
  prepare(socket_.get());
}

expected<secure_stream> secure_stream::connect(const endpoint& where, std::shared_ptr<const tls_context> context,
                                               std::chrono::milliseconds limit, std::stop_token stop) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  auto unreachable = [&](const std::string& why) {
    return fail(errc::unreachable, fmt::format("cannot connect to {}: {}", to_string(where), why));
  };
  if (auto code = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list); code != 0)
    return unreachable(::gai_strerror(code));
  auto addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{list, ::freeaddrinfo};
  auto until = clock::now() + limit;
  auto why = std::string{"the host has no address"};
  for (auto* each = list; each != nullptr; each = each->ai_next) {
    auto socket =
        collectives::unique_fd{::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol)};
    if (socket.get() < 0)
      continue;
    auto result = secure_stream{std::move(socket), stop};
    auto fd = result.socket_.get();
    if (::connect(fd, each->ai_addr, each->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) {
        why = std::strerror(errno);
        continue;
      }
      if (auto ready = result.await(POLLOUT, until); !ready)
        return unreachable(ready.error().message);
      int code = 0;
      socklen_t size = sizeof(code);
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
      if (code != 0) {
        why = std::strerror(code);
        continue;
      }
    }
    if (auto done = result.shake_hands(std::move(context), limit); !done)
      return fail(done.error().code, fmt::format("{} {}", to_string(where), done.error().message));
    return result;
  }
  return unreachable(why);
}

secure_stream secure_stream::over(collectives::unique_fd socket, std::unique_ptr<tls_session> session,
                                  std::stop_token stop) {
  auto result = secure_stream{std::move(socket), std::move(stop)};
  result.session_ = std::move(session);
  return result;
}

expected<void> secure_stream::shake_hands(std::shared_ptr<const tls_context> context, std::chrono::milliseconds limit) {
  if (!context)
    return {};
  session_ = std::make_unique<tls_session>(std::move(context), tls_role::client, socket_.get());
  auto until = clock::now() + limit;
  for (;;) {
    auto status = session_->handshake();
    if (status == tls_status::done)
      return {};
    if (status == tls_status::failed)
      return fail(session_->reason());
    TROUPE_TRY(await(status == tls_status::wants_read ? POLLIN : POLLOUT, until));
  }
}

expected<void> secure_stream::await(short events, clock::time_point limit) const {
  auto what = pollfd{socket_.get(), events, 0};
  for (;;) {
    if (stop_.stop_requested())
      return fail(errc::aborted, "the transfer was cancelled");
    auto ready = ::poll(&what, 1, static_cast<int>(std::chrono::milliseconds{slice}.count()));
    if (ready > 0)
      return {};
    if (ready < 0 && errno != EINTR)
      return fail(lost(errno));
    if (clock::now() >= limit)
      return fail(errc::timed_out, "no answer within the time limit");
  }
}

/// `plain` and `secure` each transfer some bytes from an offset; one of them is called until all are transferred.
template <class Plain, class Secure>
expected<void> secure_stream::transfer(std::size_t size_bytes, short events, Plain plain, Secure secure) {
  for (std::size_t done = 0; done < size_bytes;) {
    if (stop_.stop_requested())
      return fail(errc::aborted, "the transfer was cancelled");
    auto wanted = events;
    if (session_) {
      std::size_t count = 0;
      auto status = secure(done, count);
      if (status == tls_status::failed)
        return fail(errc::unreachable, fmt::format("the other end {}", session_->reason().message));
      done += status == tls_status::done ? count : 0;
      if (status == tls_status::done)
        continue;
      wanted = status == tls_status::wants_read ? POLLIN : POLLOUT;
    } else {
      auto count = plain(done);
      if (count > 0) {
        done += static_cast<std::size_t>(count);
        continue;
      }
      if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        return fail(lost(count == 0 ? 0 : errno));
    }
    TROUPE_TRY(await(wanted, never));
  }
  return {};
}

expected<void> secure_stream::write(std::span<const std::byte> bytes) {
  return transfer(
      bytes.size(), POLLOUT,
      [&](std::size_t from) { return ::send(socket_.get(), &bytes[from], bytes.size() - from, MSG_NOSIGNAL); },
      [&](std::size_t from, std::size_t& count) { return session_->write(&bytes[from], bytes.size() - from, count); });
}

expected<void> secure_stream::read(std::span<std::byte> bytes) {
  return transfer(
      bytes.size(), POLLIN,
      [&](std::size_t from) { return ::recv(socket_.get(), &bytes[from], bytes.size() - from, 0); },
      [&](std::size_t from, std::size_t& count) { return session_->read(&bytes[from], bytes.size() - from, count); });
}

expected<void> secure_stream::write_text(const nlohmann::json& text) {
  auto body = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  auto size = htonl(static_cast<std::uint32_t>(body.size()));
  TROUPE_TRY(write(std::as_bytes(std::span{&size, 1})));
  return write(std::as_bytes(std::span{body}));
}

expected<nlohmann::json> secure_stream::read_text(std::size_t limit_bytes) {
  std::uint32_t size = 0;
  TROUPE_TRY(read(std::as_writable_bytes(std::span{&size, 1})));
  size = ntohl(size);
  if (size > limit_bytes)
    return fail(errc::invalid_argument,
                fmt::format("the other end announced a text of {} bytes; at most {} are accepted", size, limit_bytes));
  // Memory is taken as the text arrives, whatever its length is said to be.
  std::string body;
  while (body.size() < size) {
    const auto had = body.size();
    body.resize(std::min<std::size_t>(size, std::max(2 * had, first_text_bytes)));
    TROUPE_TRY(read(std::as_writable_bytes(std::span{body}.subspan(had))));
  }
  auto result = nlohmann::json::parse(body, nullptr, false);
  if (!result.is_object())
    return fail(errc::invalid_argument, "received a text that is not a JSON object");
  return result;
}

} // namespace troupe::runtime
