#include "net/dialling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = dialling_clock;
using collectives::unique_fd;

/// How often a stop request is looked for.
constexpr auto slice = 50ms;

/// Returns an error code, 0 for success.
int connect_to(int fd, const addrinfo& address, clock::time_point deadline, const std::stop_token& stop) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0)
    return 0;
  if (errno != EINPROGRESS)
    return errno;
  if (!wait_for(fd, POLLOUT, deadline, stop))
    return stop.stop_requested() ? ECANCELED : ETIMEDOUT;
  auto code = 0;
  socklen_t size = sizeof(code);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0 ? code : errno;
}

} // namespace

error unreachable(const endpoint& where, std::string_view why, errc code) {
  return {code, fmt::format("cannot reach {}: {}; is caf-node running there, and is that the address it printed?",
                            to_string(where), why)};
}

bool wait_for(int fd, short events, clock::time_point deadline, const std::stop_token& stop) {
  for (;;) {
    auto rest = std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()), 0ms);
    if (stop.stop_possible())
      rest = std::min(rest, slice);
    auto waiting = pollfd{fd, events, 0};
    const auto ready = ::poll(&waiting, 1, static_cast<int>(rest.count()));
    if (ready > 0)
      return true;
    if (stop.stop_requested() || (ready < 0 && errno != EINTR) || clock::now() >= deadline)
      return false;
  }
}

expected<unique_fd> dial(const endpoint& where, clock::time_point deadline, const std::stop_token& stop) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (auto code = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list); code != 0)
    return fail(errc::unreachable, fmt::format("cannot resolve host '{}': {}", where.host, ::gai_strerror(code)));
  const auto found = std::unique_ptr<addrinfo, void (*)(addrinfo*)>{list, ::freeaddrinfo};
  auto code = 0;
  for (auto* each = found.get(); each != nullptr; each = each->ai_next) {
    auto fd = unique_fd{::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!fd)
      return fail(system_error("socket"));
    code = connect_to(fd.get(), *each, deadline, stop);
    if (code == 0)
      return fd;
  }
  if (code == ECANCELED)
    return fail(errc::aborted, "the connection is not wanted any more");
  return fail(
      unreachable(where, std::strerror(code), code == ECONNREFUSED ? errc::connection_refused : errc::unreachable));
}

expected<void> explain(const endpoint& where, tls_status status, const tls_session& session) {
  switch (status) {
  case tls_status::done:
    return {};
  case tls_status::failed:
    if (session.reason().code != errc::not_authenticated)
      return fail(unreachable(where, fmt::format("the other end {}", session.reason().message)));
    return fail(errc::not_authenticated,
                fmt::format("no trusted connection to {}: the other end {}. Both ends need certificates of the same "
                            "authority (for loopback: the same user's keys; for clusters: troupe certs init, then "
                            "troupe certs issue HOST), and neither may run with --insecure",
                            to_string(where), session.reason().message));
  case tls_status::wants_read:
  case tls_status::wants_write:
    return fail(unreachable(where, "it accepts connections but sends nothing"));
  }
  return {};
}

expected<std::unique_ptr<tls_session>> authenticate(const endpoint& where, key_source& keys, int fd,
                                                    clock::time_point deadline) {
  auto session = std::make_unique<tls_session>(keys.current(), tls_role::client, fd, where.host);
  auto status = complete(fd, deadline, {}, [&] { return session->handshake(); });
  if (status == tls_status::done)
    status = complete(fd, deadline, {}, [&] { return session->peek(); });
  TROUPE_TRY(explain(where, status, *session));
  return session;
}

} // namespace troupe::runtime
