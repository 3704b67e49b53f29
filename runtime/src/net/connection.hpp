#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace troupe::runtime {

/// The one place that makes connections: mutual TLS with the keys that `secure` was given, or, where a person has
/// spelled out `--insecure`, plain.

/// Loads CAF's I/O module and sets the keys; no keys: insecure.
void secure(caf::actor_system_config& config, const std::optional<tls_files>& keys);

/// Whether `secure` was given keys.
[[nodiscard]] bool is_secure(const caf::actor_system& system);

/// The keys that `secure` was given.
[[nodiscard]] std::optional<tls_files> keys_of(const caf::actor_system& system);

/// Opens a port for a node. Returns the port. Fails with `errc::unreachable` when it cannot be had and
/// `errc::not_authenticated` when the keys cannot be used.
[[nodiscard]] expected<std::uint16_t> publish(const actors::node_actor& node, const endpoint& where);

void unpublish(const actors::node_actor& node, std::uint16_t port);

/// Connects to the node at `where`. Blocks, for no longer than `limit` once the host's name is resolved; to be called
/// from a thread that may. Fails with `errc::unreachable` when nobody answers there, with `errc::not_authenticated`
/// when either end refuses the other's certificate or has none, and with `errc::program_mismatch` for a node of another
/// version.
[[nodiscard]] expected<actors::node_actor> connect(caf::actor_system& system, const endpoint& where,
                                                   std::chrono::milliseconds limit);

} // namespace troupe::runtime
