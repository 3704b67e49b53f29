#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>

#include <caf/fwd.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {

struct node_config {
  std::string host;
  std::string address;
  resources capacity;
  /// Lines for the node's own log; may be empty.
  std::function<void(const std::string&)> log;
  /// Its GPUs, as many as `capacity` has, by the names that CUDA_VISIBLE_DEVICES has for them; numbered from 0 where
  /// left out.
  std::vector<std::string> devices = {};
  /// By name, for runs that ask for nodes with certain ones.
  std::map<std::string, std::string> labels = {};
};

/// Spawns a node actor, which the caller owns. When it ends, its launcher ends all processes.
[[nodiscard]] node_actor spawn_node(caf::actor_system& system, node_config config,
                                    const launcher_factory& make_launcher);

} // namespace troupe::actors
