#include "connection.hpp"

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/openssl/all.hpp>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// Tries to open a TCP connection, only to say at once, and plainly, why there is none.
expected<void> probe_address(const addrinfo& address, const endpoint& where, std::chrono::milliseconds limit) {
  auto unreachable = [&](const std::string& why) {
    return fail(errc::unreachable, "cannot reach " + to_string(where) + ": " + why
                                     + "; is caf-node running there, and is that the address it printed?");
  };
  auto fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return fail(system_error("socket"));
  auto code = 0;
  if (::connect(fd, address.ai_addr, address.ai_addrlen) != 0 && errno == EINPROGRESS) {
    auto waiting = pollfd{fd, POLLOUT, 0};
    if (::poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) {
      code = ETIMEDOUT;
    } else {
      socklen_t size = sizeof(code);
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
    }
  } else if (errno != 0 && errno != EINPROGRESS) {
    code = errno;
  }
  ::close(fd);
  if (code != 0)
    return unreachable(std::strerror(code));
  return {};
}

expected<void> probe(const endpoint& where, std::chrono::milliseconds limit) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (auto code = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found); code != 0)
    return fail(errc::unreachable, "cannot resolve host '" + where.host + "': " + ::gai_strerror(code));
  expected<void> result;
  for (auto* each = found; each != nullptr; each = each->ai_next) {
    errno = 0;
    result = probe_address(*each, where, limit);
    if (result)
      break;
  }
  ::freeaddrinfo(found);
  return result;
}

error connection_error(const endpoint& where, const caf::error& reason, bool secure) {
  auto text = caf::to_string(reason);
  if (!secure)
    return {errc::unreachable, "no node answers at " + to_string(where) + " (" + text
                                 + "); does it run with --insecure, too?"};
  return {errc::not_authenticated, "no trusted connection to " + to_string(where) + " (" + text
                                     + "): what answers there is no caf-node, or either side refused the other's "
                                       "certificate. Both need certificates of the same authority (for loopback: the same "
                                       "user's keys; for clusters: troupe certs init, then troupe certs issue HOST)"};
}

caf::io::middleman_actor middleman_of(caf::actor_system& system) {
  return is_secure(system) ? system.openssl_manager().actor_handle() : system.middleman().actor_handle();
}

} // namespace

void secure(caf::actor_system_config& config, const std::optional<tls_files>& keys) {
  config.load<caf::io::middleman>();
  if (!keys)
    return;
  config.load<caf::openssl::manager>();
  config.openssl_certificate = keys->certificate.string();
  config.openssl_key = keys->key.string();
  config.openssl_cafile = keys->ca.string();
}

bool is_secure(const caf::actor_system& system) {
  return !system.config().openssl_cafile.empty();
}

std::optional<tls_files> keys_of(const caf::actor_system& system) {
  if (!is_secure(system))
    return std::nullopt;
  const auto& config = system.config();
  return tls_files{config.openssl_certificate, config.openssl_key, config.openssl_cafile};
}

expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where) {
  auto port = is_secure(node.home_system()) ? caf::openssl::publish(node, where.port, where.host.c_str())
                                            : caf::io::publish(node, where.port, where.host.c_str());
  if (!port)
    return fail(errc::unreachable, "cannot listen on " + to_string(where) + " (" + caf::to_string(port.error())
                                     + "): is the address one of this host's, and the port free?");
  return *port;
}

void unpublish(const actors::node_actor& node, std::uint16_t port) {
  // Not caf::openssl::unpublish(): its header does not compile in 0.18.7.
  caf::anon_send(middleman_of(node.home_system()), caf::unpublish_atom_v, caf::actor_cast<caf::actor_addr>(node), port);
}

expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where, std::chrono::milliseconds limit) {
  if (auto reachable = probe(where, limit); !reachable)
    return fail(std::move(reachable.error()));
  auto tls = is_secure(system);
  expected<actors::node_actor> result;
  auto self = caf::scoped_actor{system};
  // remote_actor() without end of waiting: whatever listens there may never answer.
  self->request(middleman_of(system), limit, caf::connect_atom_v, where.host, where.port)
    .receive(
      [&](const caf::node_id&, const caf::strong_actor_ptr& found, const std::set<std::string>& interface) {
        if (found == nullptr)
          result = fail(errc::unreachable, "nobody is published at " + to_string(where));
        else if (!system.assignable(interface, system.message_types(caf::detail::type_list<actors::node_actor>{})))
          result = fail(errc::program_mismatch, "what is published at " + to_string(where)
                                                  + " is no node of this version of Troupe: install the same version of "
                                                    "caf-node there");
        else
          result = caf::actor_cast<actors::node_actor>(found);
      },
      [&](const caf::error& reason) { result = fail(connection_error(where, reason, tls)); });
  return result;
}

} // namespace troupe::runtime
