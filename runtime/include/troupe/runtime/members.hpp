#pragma once

#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/member.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// What drivers and tools ask of a cluster's nodes. All of it blocks, for no longer than the limit for each node.
namespace troupe::runtime {

/// How to reach the nodes of a cluster: as a driver, with its keys.
struct member_access {
  /// Directory of the keys; empty: as in `cluster_config::keys`.
  std::filesystem::path keys = {};
  bool insecure = false;
  std::chrono::milliseconds limit{3'000};
};

/// The members of the cluster to which these nodes belong, by address: asks one after the other until one answers. Any
/// member may be asked: one that is no entry node names those that it has joined. Fails with what the last one failed
/// with, naming all.
[[nodiscard]] expected<std::vector<listed_member>> list_members(const std::vector<std::string>& entries,
                                                                const member_access& how);

/// "available", "draining" (it still has workers), "drained", "leaving", "silent" or "other version".
[[nodiscard]] std::string_view state_of(const listed_member& member);

/// A member for scripts and pages: its address, state, what it offers, its runs, and when its certificate expires.
[[nodiscard]] nlohmann::ordered_json to_json(const listed_member& member);

/// "2026-11-27", in UTC. `seconds` since 1970.
[[nodiscard]] std::string day_of(std::int64_t seconds);

/// Has a node take no new workers. Runs replace those that it has, between steps; what is not replaced leaves after
/// `patience`. Returns what the node says of itself. Idempotent.
[[nodiscard]] expected<cluster_member> drain_node(const std::string& address, std::chrono::milliseconds patience,
                                                  const member_access& how);

/// Has a drained node take workers again. Idempotent.
[[nodiscard]] expected<cluster_member> resume_node(const std::string& address, const member_access& how);

} // namespace troupe::runtime
