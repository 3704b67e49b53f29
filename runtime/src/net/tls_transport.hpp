#pragma once

#include "net/keys/key_source.hpp"
#include "net/tls_session.hpp"

#include <caf/io/doorman.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/scribe.hpp>

#include <chrono>
#include <memory>

namespace troupe::runtime {

/// TLS below BASP, CAF's protocol between actor systems: CAF's own broker reads and writes through a `tls_session`, and
/// `basp_guard` stops what would end the process. Without TLS, the same code carries the bytes as they are.
///
/// Replaces CAF's OpenSSL module. That module (0.18.7) leaves the errors of one connection in OpenSSL's error queue and
/// attributes them to the next connection that has to wait, so that any failed connection attempt at a port could end
/// healthy connections.

/// How long a peer that has connected may take to present its certificate and to send its first message.
inline constexpr auto handshake_limit = std::chrono::seconds{10};

/// How often a connection with keys of a cluster looks whether its peer has been revoked meanwhile, and then ends.
inline constexpr auto revocation_interval = std::chrono::seconds{2};

/// A connection for CAF's broker that this process has dialled, over a socket whose handshake is done with these keys;
/// null for both means unencrypted. Takes ownership of the socket. Callable from any thread.
[[nodiscard]] caf::io::scribe_ptr make_basp_scribe(caf::io::network::default_multiplexer& multiplexer, int fd,
                                                   std::unique_ptr<tls_session> session,
                                                   std::shared_ptr<key_source> keys);

/// A listener over a socket, of which it takes ownership; null keys mean unencrypted. Hands a connection to its broker
/// only after the peer has been verified, logs refused peers, and limits unauthenticated connections
/// (`unproven_peers`). Callable from any thread.
[[nodiscard]] caf::io::doorman_ptr make_basp_doorman(caf::io::network::default_multiplexer& multiplexer, int fd,
                                                     std::shared_ptr<key_source> keys);

} // namespace troupe::runtime
