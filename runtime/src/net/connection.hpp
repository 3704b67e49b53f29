#pragma once

#include "net/keys/key_source.hpp"

#include <troupe/actors/handles.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace troupe::runtime {

/// All connections of actors are made here: with mutual TLS and the keys passed to `secure`, or unencrypted if the user
/// asked for `--insecure`.

/// Loads CAF's I/O module and sets the keys. Without keys, connections are not encrypted.
void secure(caf::actor_system_config& config, const std::optional<tls_files>& keys);

/// Disables CAF's timeout of connections (30 s without a byte), for a system whose peers are all on this host. The
/// kernel closes the connections of a process that ends, and our own heartbeats detect one that does not run. A
/// debugger may hold a process for any time.
void keep_silent_connections(caf::actor_system_config& config);

/// The same for local peers of a system that also has remote peers, whose hosts may vanish silently. CAF has one
/// timeout for all, so this call counts as activity of the local peers: repeat it within the timeout. Thread-safe.
void keep_silent_local_connections(caf::actor_system& system);

/// Whether keys were passed to `secure`.
[[nodiscard]] bool is_secure(const caf::actor_system& system);

/// The keys passed to `secure`.
[[nodiscard]] std::optional<tls_files> keys_of(const caf::actor_system& system);

/// Opens a port for a node, whose peers present certificates that fit these keys, and returns its number. Without keys
/// connections are not encrypted. Fails with `errc::unreachable` if the port cannot be opened.
[[nodiscard]] expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where,
                                              std::shared_ptr<key_source> keys);

/// With the keys passed to `secure`. Fails with `errc::not_authenticated` if they cannot be used.
[[nodiscard]] expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where);

void unpublish(const actors::node_actor& node, std::uint16_t port);

/// Connects to the node at `where`, with the keys passed to `secure` or with others. Blocks, for at most `limit` after
/// the host's name is resolved, so do not call it from an actor. Fails with `errc::connection_refused` or
/// `errc::unreachable` if no node answers, `errc::not_authenticated` if either end rejects the other's certificate,
/// name or role, or has none, and `errc::program_mismatch` for a node of another version.
[[nodiscard]] expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where,
                                                   std::chrono::milliseconds limit);
[[nodiscard]] expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where,
                                                   const std::optional<tls_files>& keys,
                                                   std::chrono::milliseconds limit);

} // namespace troupe::runtime
