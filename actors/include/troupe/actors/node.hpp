#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/member.hpp>

#include <caf/fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace troupe::actors {

/// What a node has and does, for its cluster.
struct node_status {
  member_phase phase = member_phase::available;
  /// What no run has.
  resources free;
  std::vector<member_run> runs;

  bool operator==(const node_status&) const = default;
};

struct node_config {
  std::string host;
  std::string address;
  resources capacity;
  /// Lines for the node's own log; may be empty.
  std::function<void(const std::string&)> log;
  /// Its GPUs, as many as `capacity` has, by the names that CUDA_VISIBLE_DEVICES has for them; numbered from 0 where
  /// left out.
  std::vector<std::string> devices = {};
  /// Called in the node's thread when its status has changed, several times a second at most; may be empty.
  std::function<void(const node_status&)> on_status = {};
};

/// Spawns a node actor, which the caller owns. When it ends, its launcher ends all processes.
[[nodiscard]] node_actor spawn_node(caf::actor_system& system, node_config config,
                                    const launcher_factory& make_launcher);

} // namespace troupe::actors
