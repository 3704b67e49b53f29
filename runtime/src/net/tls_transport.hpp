#pragma once

#include "net/tls_session.hpp"

#include <caf/io/doorman.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/scribe.hpp>

#include <chrono>
#include <memory>

namespace troupe::runtime {

/// TLS below BASP, CAF's protocol between actor systems: what CAF's own broker reads and writes goes through a
/// `tls_session`.
///
/// In the place of CAF's OpenSSL module, which leaves the errors of one connection in OpenSSL's list and takes them for
/// failures of the next that has to wait (0.18.7), so that whoever knocked at a port and went cut healthy connections.

/// How long a peer that has connected may take to show its certificate.
inline constexpr auto handshake_limit = std::chrono::seconds{10};

/// A connection for CAF's broker over a socket, which it takes over, whose handshake is done. From any thread.
[[nodiscard]] caf::io::scribe_ptr make_tls_scribe(caf::io::network::default_multiplexer& multiplexer, int fd,
                                                  std::unique_ptr<tls_session> session);

/// A listener over a socket, which it takes over. Hands a connection to its broker once the peer is verified, and never
/// one that is not. From any thread.
[[nodiscard]] caf::io::doorman_ptr make_tls_doorman(caf::io::network::default_multiplexer& multiplexer, int fd,
                                                    std::shared_ptr<const tls_context> context);

} // namespace troupe::runtime
