#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>

#include <caf/fwd.hpp>

#include <functional>
#include <string>

namespace troupe::actors {

/// What a node is told at its start.
struct node_config {
  std::string host;
  std::string address;
  resources capacity;
  /// Lines for the node's own log; may be empty.
  std::function<void(const std::string&)> log;
};

/// Spawns a node actor. Whoever spawns it owns it; when it ends, its launcher ends all processes.
[[nodiscard]] node_actor spawn_node(caf::actor_system& system, node_config config,
                                    const launcher_factory& make_launcher);

} // namespace troupe::actors
