#include <troupe/runtime/secure_stream.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <string>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
namespace tcp = collectives::tcp;
using clock = std::chrono::steady_clock;

/// How often the stop token is checked.
constexpr auto poll_interval = 100ms;

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

/// Waits until the socket is ready for `events`. Fails after `limit` and after a stop request.
expected<void> await(int fd, short events, clock::time_point limit, const std::stop_token& stop) {
  auto what = pollfd{fd, events, 0};
  for (;;) {
    if (stop.stop_requested())
      return fail(errc::aborted, "the transfer was cancelled");
    auto ready = ::poll(&what, 1, static_cast<int>(std::chrono::milliseconds{poll_interval}.count()));
    if (ready > 0)
      return {};
    if (ready < 0 && errno != EINTR)
      return fail(errc::unreachable, fmt::format("the connection was lost: {}", std::strerror(errno)));
    if (clock::now() >= limit)
      return fail(errc::timed_out, "no answer within the time limit");
  }
}

} // namespace

secure_stream::secure_stream(std::unique_ptr<tcp::channel> channel, std::string binding, std::stop_token stop)
    : channel_(std::move(channel)), binding_(std::move(binding)), stop_(std::move(stop)) {}

expected<secure_stream> secure_stream::connect(const endpoint& where, const std::optional<stream_key>& key,
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
    prepare(socket.get());
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) {
        why = std::strerror(errno);
        continue;
      }
      if (auto ready = await(socket.get(), POLLOUT, until, stop); !ready)
        return unreachable(ready.error().message);
      int code = 0;
      socklen_t size = sizeof(code);
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
      if (code != 0) {
        why = std::strerror(code);
        continue;
      }
    }
    auto result = begin(std::move(socket), key, limit, std::move(stop));
    if (!result)
      return fail(result.error().code, fmt::format("{}: {}", to_string(where), result.error().message));
    return result;
  }
  return unreachable(why);
}

secure_stream secure_stream::over(std::unique_ptr<tcp::channel> channel, std::string binding, std::stop_token stop) {
  prepare(channel->fd());
  return secure_stream{std::move(channel), std::move(binding), std::move(stop)};
}

expected<secure_stream> secure_stream::begin(collectives::unique_fd socket, const std::optional<stream_key>& key,
                                             std::chrono::milliseconds limit, std::stop_token stop) {
  if (!key)
    return secure_stream{tcp::make_plain_channel(std::move(socket)), {}, std::move(stop)};
  TROUPE_TRY(auto channel, tcp::make_tls_channel(std::move(socket), tcp::tls_side::client, key->key, key->name));
  using state = tcp::tls_session::state;
  const auto until = clock::now() + limit;
  for (auto now = channel->shake_hands(); now != state::done; now = channel->shake_hands()) {
    if (now == state::failed)
      return fail(errc::not_authenticated,
                  fmt::format("no session with the run's key: {}", static_cast<tcp::tls_session&>(*channel).why()));
    TROUPE_TRY(await(channel->fd(), now == state::wants_read ? POLLIN : POLLOUT, until, stop));
  }
  auto binding = serialization::to_hex(channel->binding());
  return secure_stream{std::move(channel), std::move(binding), std::move(stop)};
}

template <class Step>
expected<void> secure_stream::repeat(short events, Step step) {
  using state = tcp::transferred::state;
  for (;;) {
    if (stop_.stop_requested())
      return fail(errc::aborted, "the transfer was cancelled");
    auto is_done = false;
    const auto after = step(is_done);
    if (is_done)
      return {};
    if (after == state::closed)
      return fail(errc::unreachable, fmt::format("the connection has ended: {}", channel_->why()));
    if (after == state::would_block)
      TROUPE_TRY(await(channel_->fd(), events, never, stop_));
  }
}

expected<void> secure_stream::write(std::span<const std::byte> bytes) {
  return repeat(POLLOUT, [&](bool& is_done) {
    auto after = tcp::transferred::state::open;
    if (!bytes.empty()) {
      const auto rest = iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const auto sent = channel_->write({&rest, 1});
      bytes = bytes.subspan(sent.bytes);
      after = sent.after;
    }
    if (bytes.empty() && after != tcp::transferred::state::closed && channel_->has_unsent())
      after = channel_->flush().after;
    is_done = bytes.empty() && after != tcp::transferred::state::closed && !channel_->has_unsent();
    return after;
  });
}

expected<void> secure_stream::read(std::span<std::byte> bytes) {
  return repeat(POLLIN, [&](bool& is_done) {
    auto after = tcp::transferred::state::open;
    if (!bytes.empty()) {
      const auto rest = iovec{bytes.data(), bytes.size()};
      const auto got = channel_->read({&rest, 1});
      bytes = bytes.subspan(got.bytes);
      after = got.after;
    }
    is_done = bytes.empty();
    return after;
  });
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
  // Allocate as the text arrives, independent of its announced length.
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
