#pragma once

#include <troupe/app.hpp>
#include <troupe/config/cluster.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/serving/served_model.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troupe::serving {

/// Replicas in processes of their own: on this machine, or on the nodes of a cluster.
struct remote_config {
  std::uint32_t replicas = 1;
  /// The nodes; without any, the processes are on this machine. Replicas are spread over them in turn, and one whose
  /// node takes it no longer starts on the next.
  cluster_config cluster = {};
  /// What each process leases of its node, as `scaling_config::resources_per_worker`.
  resources resources_per_replica = {};
  /// As in `scaling_config`.
  std::map<std::string, std::string> node_labels = {};
  /// As in `scaling_config`.
  std::chrono::milliseconds wait_for_resources{0};
  /// How long `start` waits for the first process.
  std::chrono::milliseconds start_timeout{60'000};
  /// Passed to the function that loads models in the processes.
  nlohmann::json options = nlohmann::json::object();
  /// As `server_config::notice`; also gets what the processes write.
  std::function<void(std::string_view line)> notice = {};
};

/// Loads a model in the process of a replica. The checkpoint has been verified; `options` are those of the
/// `remote_config`.
using load_replica =
    std::function<expected<served_model>(const serialization::checkpoint& source, const nlohmann::json& options)>;

/// The function that the processes run: give it to `app` or `run_if_worker`, first in `main`.
[[nodiscard]] function replica_function(std::string name, load_replica load);

/// Keeps a process running for each replica, and carries batches to them and predictions back, encrypted. A process
/// that ends starts again. Checkpoints are sent to processes on nodes; other files that models need must be there.
///
///     auto replica = serving::replica_function("replica", load);
///     auto app = troupe::app{argc, argv, {replica}};
///     auto there = serving::remote_replicas{replica, {.replicas = 4, .cluster = {.nodes = nodes}}};
///     value_or_throw(there.start());
///     auto server = serving::server{{.replicas = 4}, serving::checkpoint_models{run, there.load()}};
class remote_replicas {
 public:
  remote_replicas(const function& replica, remote_config config);
  /// Ends the processes.
  ~remote_replicas();
  remote_replicas(const remote_replicas&) = delete;
  remote_replicas& operator=(const remote_replicas&) = delete;

  /// Starts the processes, and returns when the first is there. Once. Fails with the reason of the first that could not
  /// be started if none can be, with `errc::timed_out` after `start_timeout`, with `errc::stopped` after `stop`, and as
  /// `troupe::prepare` does.
  [[nodiscard]] expected<void> start();

  /// For `checkpoint_models::load`: loads the model in a process that has none of this checkpoint; after ten seconds
  /// without such a process in the one that has the fewest. Fails as loading there does, with `errc::unreachable` after
  /// thirty without any process, with `errc::worker_lost` if three processes have ended meanwhile, and with
  /// `errc::stopped` after `stop`. May outlive this object, and so may what it loads, which predicts no more after
  /// `stop`.
  [[nodiscard]] std::function<expected<served_model>(const serialization::checkpoint& source)> load();

  /// Ends the processes, with all that they predict. Thread-safe, idempotent.
  void stop();

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::serving
