#pragma once

#include "net/keys/key_source.hpp"
#include "net/tls_session.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <memory>
#include <poll.h>
#include <stop_token>
#include <string_view>

/// The client's side of connections to nodes: sockets, and TLS over them. All of it blocks, until a deadline or a stop
/// request, apart from the look-up of the host's name.
namespace troupe::runtime {

using dialling_clock = std::chrono::steady_clock;

/// "cannot reach HOST:PORT: why", and what to look at.
[[nodiscard]] error unreachable(const endpoint& where, std::string_view why, errc code = errc::unreachable);

/// A connected, non-blocking socket. Fails with `errc::unreachable`, with `errc::connection_refused` if nobody listens
/// there, and with `errc::aborted` after a stop request.
[[nodiscard]] expected<collectives::unique_fd> dial(const endpoint& where, dialling_clock::time_point deadline,
                                                    const std::stop_token& stop = {});

/// Waits until the socket is ready for `events` of poll(). False after the deadline and after a stop request.
[[nodiscard]] bool wait_for(int fd, short events, dialling_clock::time_point deadline,
                            const std::stop_token& stop = {});

/// Repeats a step of a session until it is done, has failed, or waited in vain.
template <class Step>
[[nodiscard]] tls_status complete(int fd, dialling_clock::time_point deadline, const std::stop_token& stop, Step step) {
  for (;;) {
    const auto status = step();
    if (status != tls_status::wants_read && status != tls_status::wants_write)
      return status;
    if (!wait_for(fd, status == tls_status::wants_read ? POLLIN : POLLOUT, deadline, stop))
      return status;
  }
}

/// Nothing for `done`; else why there is no trusted connection.
[[nodiscard]] expected<void> explain(const endpoint& where, tls_status status, const tls_session& session);

/// Returns once both ends have accepted the other's certificate. With TLS 1.3 the client completes its handshake before
/// the server has checked the client's certificate. A node sends first, so its first byte shows that it has accepted.
[[nodiscard]] expected<std::unique_ptr<tls_session>> authenticate(const endpoint& where, key_source& keys, int fd,
                                                                  dialling_clock::time_point deadline);

} // namespace troupe::runtime
