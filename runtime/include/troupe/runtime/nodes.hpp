#pragma once

#include <troupe/config/cluster.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/node_names.hpp>

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

/// Which nodes there are, and what they say of themselves, for drivers and tools. All of it blocks.
namespace troupe::runtime {

/// Asks the source once. `none` has no nodes. Fails with what keeps it from naming any; takes 12 seconds at most.
[[nodiscard]] expected<std::vector<named_node>> find_nodes(const node_source& source);

/// The addresses of a cluster's nodes: as configured, or what `discover` names now.
[[nodiscard]] expected<std::vector<std::string>> addresses_of(const cluster_config& cluster);

/// Fills in the nodes of a cluster that names none, from the environment: TROUPE_NODES as `name_nodes` reads it, else
/// the host file TROUPE_HOSTS. Fails for what cannot be read, and for TROUPE_CLUSTER, which has gone.
[[nodiscard]] expected<void> complete_nodes(cluster_config& cluster);

/// A node, and what it says of itself, or why it says nothing.
struct asked_node {
  std::string address;
  expected<node_report> report = {};
};

/// Asks all at once, as a driver with the cluster's keys. Each has `connect_timeout` to be reached and as much to
/// answer. The order is that of the addresses.
[[nodiscard]] std::vector<asked_node> ask_nodes(const std::vector<std::string>& addresses, const cluster_config& how);

/// Has a node take no new workers. Runs replace those that it has, between steps; what is not replaced leaves after
/// `patience`. Returns what the node says of itself. Idempotent.
[[nodiscard]] expected<node_report> drain(const std::string& address, std::chrono::milliseconds patience,
                                          const cluster_config& how);

/// Has a drained node take workers again. Idempotent.
[[nodiscard]] expected<node_report> resume(const std::string& address, const cluster_config& how);

/// The node's workers.
[[nodiscard]] std::uint32_t workers_of(const node_report& node);

/// "available", "draining" (it still has workers), "drained", "leaving", "silent", "other version" or "refuses" (it
/// does not accept this host's certificate, or has none that is for it).
[[nodiscard]] std::string_view state_of(const asked_node& node);

/// For scripts: its address and state; what it says, or "problem".
[[nodiscard]] nlohmann::ordered_json to_json(const asked_node& node);

/// "2026-11-27", in UTC. `seconds` since 1970.
[[nodiscard]] std::string day_of(std::int64_t seconds);

} // namespace troupe::runtime
