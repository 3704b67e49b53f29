#include "trainer/begin_message.hpp"

#include <troupe/collectives/listener.hpp>
#include <troupe/config.hpp>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::actors {

namespace {

/// Whether `HOST:PORT` leads to this host.
bool is_here(const std::string& address) {
  return collectives::tcp::is_loopback(address.substr(0, address.rfind(':')));
}

/// Whether third parties can read the workers' traffic: not on one host or on a trusted network.
bool is_exposed(const cluster_config& cluster) {
  // Nodes that are discovered may be anywhere.
  return !cluster.trusted_network && (cluster.discover.is_set() || !std::ranges::all_of(cluster.nodes, is_here));
}

/// Longer than the heartbeat timeout, so that a worker silent on both networks is found by its heartbeat.
std::chrono::milliseconds answer_timeout(const failure_config& failure) {
  return std::max(2 * failure.heartbeat_timeout, std::chrono::milliseconds{2000});
}

/// NCCL sends clear text. Between hosts it is used only on a trusted network or when configured.
gpu_gradients gradients_by(transport_mode mode, const cluster_config& cluster) {
  switch (mode) {
  case transport_mode::automatic:
    return is_exposed(cluster) ? gpu_gradients::by_host : gpu_gradients::automatic;
  case transport_mode::nccl:
    return gpu_gradients::by_nccl;
  case transport_mode::shm:
  case transport_mode::tcp:
  case transport_mode::hierarchical:
    return gpu_gradients::by_host;
  }
  return gpu_gradients::by_host;
}

} // namespace

begin_training begin_message(const std::string& function, const std::string& directory, const run_id& run,
                             const trainer_config& config, const starting_state& state) {
  begin_training message;
  message.run = run;
  auto& settings = message.settings;
  settings.function = function;
  settings.name = config.run.name;
  settings.directory = directory;
  settings.seed = config.run.seed;
  settings.shards = config.scaling.shards;
  settings.configuration = config.config.dump();
  settings.options = config.options.dump();
  settings.steps = config.run.steps;
  settings.stop_after = config.run.stop_after;
  settings.fast_reduction = config.run.reduction == reduction_mode::fast;
  settings.keep_ledger = config.run.keep_ledger;
  settings.check_every_step = config.run.check_every_step;
  settings.verify_determinism = config.run.verify_determinism;
  settings.collective_timeout_ms = static_cast<std::uint64_t>(config.run.collective_timeout.count());
  settings.answer_timeout_ms = static_cast<std::uint64_t>(answer_timeout(config.failure).count());
  settings.encrypt_data_plane = is_exposed(config.cluster);
  settings.end_on_not_finite = config.failure.not_finite == not_finite_mode::end_run;
  settings.ports = config.cluster.ports;
  settings.driver_ends_waits = config.failure.hang == hang_mode::replace;
  message.resume.checkpoint = state.directory();
  message.resume.restore_step = state.continues_steps();
  // A run's own state has to be whole.
  if (!state.is_own())
    message.resume.load = config.load;
  message.resume.step = state.step;
  message.resume.is_finished = state.is_finished;
  message.checkpoints.every_steps = config.checkpoint.every_steps;
  message.checkpoints.max_in_flight = config.checkpoint.max_in_flight;
  message.checkpoints.sync = config.checkpoint.sync;
  message.checkpoints.reuse_unchanged = config.checkpoint.reuse_unchanged;
  // A skipped checkpoint might be the best one.
  message.checkpoints.may_skip = config.checkpoint.score_attribute.empty();
  message.device.gpus = resources_of_worker(config.scaling).gpus;
  message.device.gradients = gradients_by(config.run.transport, config.cluster);
  return message;
}

} // namespace troupe::actors
