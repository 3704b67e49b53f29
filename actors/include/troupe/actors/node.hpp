#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>

#include <caf/fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {

/// How a node stands, for its metrics.
struct node_figures {
  struct run {
    std::string name;
    /// Of its worker processes here that live.
    std::vector<std::uint32_t> pids;
    /// Those without heartbeats whose process does not only wait for a processor.
    std::uint32_t silent = 0;
    bool has_driver = true;
  };

  resources offered;
  /// GPUs that workers have.
  std::uint32_t used_gpus = 0;
  std::vector<run> runs;
  // Since the node's start.
  std::uint64_t runs_begun = 0;
  std::uint64_t workers_started = 0;
  std::uint64_t workers_ended = 0;
  /// How often a worker was found silent.
  std::uint64_t late_heartbeats = 0;
  bool is_draining = false;
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
  /// By name, for runs that ask for nodes with certain ones.
  std::map<std::string, std::string> labels = {};
  /// Gets the node's figures five times a second, in the node's thread; may be empty.
  std::function<void(node_figures)> publish = {};
  /// For `node_report`.
  std::string version = {};
  /// As in `node_report`. Called in the node's thread, so it waits for nothing; may be empty.
  std::function<std::optional<std::int64_t>()> certificate_expires = {};
};

/// Spawns a node actor, which the caller owns. When it ends, its launcher ends all processes.
[[nodiscard]] node_actor spawn_node(caf::actor_system& system, node_config config,
                                    const launcher_factory& make_launcher);

} // namespace troupe::actors
