#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/actors/mirror_storage.hpp>
#include <troupe/actors/run_monitor.hpp>
#include <troupe/config/cluster.hpp>
#include <troupe/error.hpp>
#include <troupe/node_names.hpp>

#include <caf/fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// A node that a trainer may use until this is destroyed.
class connected_node {
 public:
  virtual ~connected_node() = default;

  [[nodiscard]] virtual const node_actor& handle() const noexcept = 0;
  /// As people know it: "10.0.0.7:4000", or "embedded".
  [[nodiscard]] virtual std::string address() const = 0;
};

/// Takes in the parts of workers that do not see the run's directory, over connections of their own, until it is
/// destroyed; and gives them the checkpoint that they begin with.
class part_receiver {
 public:
  virtual ~part_receiver() = default;

  /// `HOST:PORT` at which a host reaches this one; empty where there is no way. Fails with `errc::unreachable` if
  /// nothing can listen there.
  [[nodiscard]] virtual expected<std::string> address_towards(const std::string& host) = 0;
  /// Whose files may be read from now on.
  virtual void lend(const std::filesystem::path& checkpoint) = 0;
};

/// Connections of other processes of this machine that watch and steer a run, until it is destroyed. They send lines,
/// and get lines. Slow, silent and superfluous ones are closed. Its functions do not block and may be called from any
/// thread, except as noted.
class control_port {
 public:
  /// Which connection; never reused.
  using connection = std::uint64_t;

  /// Gives the last lines a moment to leave. Blocks for it.
  virtual ~control_port() = default;

  /// `on_line` gets the lines of all connections from now on, in a thread of the port; of each connection the next one
  /// when the last is answered. Called once.
  virtual void serve(std::function<void(connection, std::string line)> on_line) = 0;
  /// Answers the connection's last line.
  virtual void answer(connection whom, std::string line) = 0;
  /// The connection also gets what is published from now on.
  virtual void subscribe(connection whom) = 0;
  virtual void publish(const std::string& line) = 0;
  [[nodiscard]] virtual bool has_subscribers() const = 0;
};

/// Runs of a driver that have the same worker processes, one after the other.
struct process_group {
  /// Random, 32 hexadecimal digits.
  std::string id;
  /// The group ends with it.
  process_keeper keeper;
};

/// A trainer's dependencies: runtime/ provides real ones, tests fake ones. All but `compare_numerics`, `is_loopback`
/// and `open_monitor` may block, and are not called in the trainer's thread.
struct trainer_services {
  /// Connects to the node at an address of the configuration; hosts one if that is empty. Called in several threads at
  /// once.
  std::function<expected<std::unique_ptr<connected_node>>(const cluster_config&, const std::string& address)>
      connect_node;
  /// Asks which nodes there are. May be empty for runs that do not discover nodes.
  std::function<expected<std::vector<named_node>>(const node_source&)> find_nodes;
  /// Takes parts of this run's checkpoints into a directory. May be empty: all workers share it then.
  std::function<expected<std::unique_ptr<part_receiver>>(const run_id&, const std::string& secret,
                                                         const std::filesystem::path& checkpoints)>
      receive_parts;
  /// Opens the place of a run at a mirror, through this rclone. May be empty for runs without a mirror.
  std::function<expected<std::unique_ptr<mirror_storage>>(const std::string& place, const std::string& rclone)>
      open_mirror = {};
  /// Listens in a run's directory, which the caller holds. May be empty: nobody can watch or steer the run from outside
  /// its process then.
  std::function<expected<std::unique_ptr<control_port>>(const std::filesystem::path& directory)> open_control_port;
  /// The group whose processes the run's nodes use and keep. Nothing: workers are new processes, which end with the
  /// run.
  std::optional<process_group> group = {};
  std::string program_path;
  std::string build_id;
  /// How to repeat in one process what ends every attempt of the run, for the end of a message; may be empty.
  std::string in_one_process = {};
  /// Differences of two numerics fingerprints (JSON text).
  std::vector<std::string> (*compare_numerics)(const std::string& ours, const std::string& theirs) = nullptr;
  /// Whether two hosts reach each other without leaving the machine.
  bool (*is_loopback)(const std::string& host) = nullptr;
  /// Shows what a worker wrote; may be empty.
  std::function<void(rank_id, const std::string& line)> show_output;
  /// Called once, before anything of the run begins. May be empty.
  monitor_factory open_monitor = {};
};

/// Spawns the trainer of one run. `function` is the name under which the program registered its training function. The
/// actor ends after it has answered `fit_request`.
[[nodiscard]] trainer_actor spawn_trainer(caf::actor_system& system, std::string function, trainer_config config,
                                          trainer_services services);

} // namespace troupe::actors
