#include "net/connection.hpp"

#include "net/dialling.hpp"
#include "net/tls_session.hpp"
#include "net/tls_transport.hpp"

#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/settings.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// CAF keeps settings that it does not know under any name; its own names for these files are gone in 1.1.
constexpr std::string_view certificate_setting = "troupe.tls.certificate";
constexpr std::string_view key_setting = "troupe.tls.key";
constexpr std::string_view ca_setting = "troupe.tls.ca";
constexpr std::string_view scope_setting = "troupe.tls.scope";
constexpr auto cluster_scope = "cluster";

std::string setting(const caf::actor_system& system, std::string_view name) {
  return caf::get_or(system.config(), name, std::string{});
}

caf::actor broker_of(caf::actor_system& system) {
  return system.middleman().named_broker<caf::io::basp_broker>("BASP");
}

/// The multiplexer of every system outside CAF's own tests.
caf::io::network::default_multiplexer& multiplexer_of(caf::actor_system& system) {
  return dynamic_cast<caf::io::network::default_multiplexer&>(system.middleman().backend());
}

/// Serialises introductions. When two connections to one node are new at the same time, the brokers at the two ends may
/// keep different ones and lose each other. CAF's middleman actor avoids that, but does not support TLS. So a
/// connection is introduced only when both ends know the previous one. The mutex is global because an actor system
/// cannot hold it. It is locked for two round trips to a peer that has already sent data.
std::timed_mutex& introduction() {
  static std::timed_mutex result;
  return result;
}

expected<actors::node_actor> check_node(caf::actor_system& system, const endpoint& where,
                                        const caf::strong_actor_ptr& found, const std::set<std::string>& interface) {
  if (found == nullptr)
    return fail(errc::unreachable, fmt::format("no actor is published at {}", to_string(where)));
  if (!system.assignable(interface, system.message_types<actors::node_actor>()))
    return fail(errc::program_mismatch, fmt::format("the actor published at {} is not a node of this version of "
                                                    "Troupe: install the same version of caf-node there",
                                                    to_string(where)));
  return caf::actor_cast<actors::node_actor>(found);
}

error introduction_error(const endpoint& where, const caf::error& reason, bool secure) {
  return {errc::unreachable, fmt::format("no node answers at {} ({}){}", to_string(where), caf::to_string(reason),
                                         secure ? "" : "; does it run with --insecure, too?")};
}

/// Makes the actor systems at both ends of a connection known to each other. Returns when the node has answered.
expected<actors::node_actor> introduce(caf::actor_system& system, const endpoint& where, caf::io::scribe_ptr connection,
                                       bool is_encrypted, clock::time_point deadline) {
  auto turn = std::unique_lock{introduction(), deadline};
  if (!turn)
    return fail(unreachable(where, "timed out waiting for other connections to be established"));
  expected<actors::node_actor> result;
  auto self = caf::scoped_actor{system};
  auto rest = [&] { return std::max<clock::duration>(deadline - clock::now(), std::chrono::milliseconds{1}); };
  self->request(broker_of(system), rest(), caf::connect_atom_v, std::move(connection), where.port)
      .receive([&](const caf::node_id&, const caf::strong_actor_ptr& found,
                   const std::set<std::string>& interface) { result = check_node(system, where, found, interface); },
               [&](const caf::error& reason) { result = fail(introduction_error(where, reason, is_encrypted)); });
  if (!result)
    return result;
  // An answer over this connection shows that the other end knows it.
  auto node = *result;
  self->request(node, rest(), node_question{})
      .receive([](const node_report&) {},
               [&](const caf::error& reason) { result = fail(introduction_error(where, reason, is_encrypted)); });
  return result;
}

expected<actors::node_actor> introduce_over(caf::actor_system& system, const endpoint& where, unique_fd socket,
                                            const std::optional<tls_files>& files, clock::time_point deadline) {
  auto& multiplexer = multiplexer_of(system);
  if (!files)
    return introduce(system, where, make_basp_scribe(multiplexer, socket.release(), nullptr, nullptr), false, deadline);
  TROUPE_TRY(auto keys, key_source::make(*files));
  TROUPE_TRY(auto session, authenticate(where, *keys, socket.get(), deadline));
  return introduce(system, where, make_basp_scribe(multiplexer, socket.release(), std::move(session), std::move(keys)),
                   true, deadline);
}

} // namespace

void secure(caf::actor_system_config& config, const std::optional<tls_files>& keys) {
  config.load<caf::io::middleman>();
  if (!keys)
    return;
  caf::put(config.content, certificate_setting, keys->certificate.string());
  caf::put(config.content, key_setting, keys->key.string());
  caf::put(config.content, ca_setting, keys->ca.string());
  if (keys->scope == key_scope::cluster)
    caf::put(config.content, scope_setting, std::string{cluster_scope});
}

void keep_silent_connections(caf::actor_system_config& config) {
  // CAF adds it to a time: its largest value would overflow. Heartbeats stay, for peers that count them.
  caf::put(config.content, "caf.middleman.connection-timeout", caf::timespan{std::chrono::years{10}});
}

void keep_silent_local_connections(caf::actor_system& system) {
  // The broker belongs to the multiplexer's thread.
  multiplexer_of(system).post([broker = broker_of(system)] {
    auto& state = dynamic_cast<caf::io::basp_broker&>(*caf::actor_cast<caf::abstract_actor*>(broker));
    for (auto& [connection, context] : state.ctx)
      if (is_loopback(state.remote_addr(connection)))
        context.last_seen = state.clock().now();
  });
}

bool is_secure(const caf::actor_system& system) {
  return !setting(system, ca_setting).empty();
}

std::optional<tls_files> keys_of(const caf::actor_system& system) {
  if (!is_secure(system))
    return std::nullopt;
  return tls_files{setting(system, certificate_setting), setting(system, key_setting), setting(system, ca_setting),
                   setting(system, scope_setting) == cluster_scope ? key_scope::cluster : key_scope::loopback};
}

expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where) {
  const auto files = keys_of(node.home_system());
  if (!files)
    return publish(node, where, nullptr);
  TROUPE_TRY(auto keys, key_source::make(*files));
  return publish(node, where, std::move(keys));
}

expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where,
                                std::shared_ptr<key_source> keys) {
  auto& system = node.home_system();
  auto& multiplexer = multiplexer_of(system);
  // Reuse the address, so that a restarted node need not wait until the connections of its predecessor time out.
  auto listener = caf::io::network::new_tcp_acceptor_impl(where.port, where.host.c_str(), true);
  if (!listener)
    return fail(errc::unreachable,
                fmt::format("cannot listen on {} ({}): does the address belong to this host, and is the port free?",
                            to_string(where), caf::to_string(listener.error())));
  auto doorman = make_basp_doorman(multiplexer, *listener, std::move(keys));
  auto port = doorman->port();
  caf::anon_send(broker_of(system), caf::publish_atom_v, std::move(doorman), port,
                 caf::actor_cast<caf::strong_actor_ptr>(node), system.message_types(node));
  return port;
}

void unpublish(const actors::node_actor& node, std::uint16_t port) {
  caf::anon_send(broker_of(node.home_system()), caf::unpublish_atom_v, caf::actor_cast<caf::actor_addr>(node), port);
}

expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where,
                                     std::chrono::milliseconds limit) {
  return connect(system, where, keys_of(system), limit);
}

expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where,
                                     const std::optional<tls_files>& keys, std::chrono::milliseconds limit) {
  auto deadline = clock::now() + limit;
  TROUPE_TRY(auto socket, dial(where, deadline));
  const auto guard = unique_fd{::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)};
  auto result = introduce_over(system, where, std::move(socket), keys, deadline);
  // A node that considers the connection redundant never answers over it, but CAF would keep it.
  if (!result && guard)
    ::shutdown(guard.get(), SHUT_RDWR);
  return result;
}

} // namespace troupe::runtime
