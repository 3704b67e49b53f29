#include <troupe/actor_system.hpp>

#include "driver/control_port.hpp"
#include "driver/own_node.hpp"
#include "driver/run_naming.hpp"
#include "driver/trainer_spawning.hpp"
#include "monitoring/monitor.hpp"
#include "net/connection.hpp"
#include "net/parts/part_stream.hpp"
#include "nodes/driver_keys.hpp"
#include <troupe/runtime/job_variable.hpp>

#include <troupe/actors/trainer.hpp>
#include <troupe/runtime/fingerprint.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/mirror.hpp>
#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/nodes.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>
#include <caf/io/middleman.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>

namespace troupe {

namespace {

/// A caf-node somewhere.
class remote_node : public actors::connected_node {
 public:
  remote_node(actors::node_actor handle, endpoint where) : handle_(std::move(handle)), where_(std::move(where)) {}

  const actors::node_actor& handle() const noexcept override { return handle_; }
  std::string address() const override { return to_string(where_); }

 private:
  actors::node_actor handle_;
  endpoint where_;
};

/// `program` is what workers are processes of, for a node inside the driver.
expected<std::unique_ptr<actors::connected_node>> connect_node(caf::actor_system& system, const cluster_config& cluster,
                                                               const std::string& address, const std::string& program,
                                                               const std::optional<function>& in_process,
                                                               const std::shared_ptr<runtime::kept_processes>& kept) {
  if (!system.has_middleman())
    return fail(errc::invalid_argument, "this actor system was not prepared for Troupe: call troupe::prepare on its "
                                        "configuration before it is made");
  if (!cluster.insecure && !runtime::is_secure(system))
    return fail(errc::invalid_argument,
                "this actor system has no keys: call troupe::prepare on its configuration before "
                "it is made, or set cluster.insecure");
  auto where = expected<endpoint>{};
  if (!address.empty()) {
    where = parse_endpoint(address);
    if (!where)
      return fail(std::move(where.error()));
  }
  auto keys = runtime::keys_of(system);
  if (keys) {
    // This machine's processes have keys of their own, also if other nodes of the run are elsewhere.
    TROUPE_TRY(keys, runtime::keys_towards(address.empty() ? endpoint{"127.0.0.1", 0} : *where, cluster));
  }
  if (address.empty()) {
    if (!kept || in_process)
      return runtime::start_own_node(system, keys, program, in_process);
    return kept->own_node([&] { return runtime::start_own_node(system, keys, program, {}); });
  }
  if (in_process)
    return fail(errc::invalid_argument, "scaling.num_workers is 0: a run that trains in the driver's process takes no "
                                        "cluster.nodes");
  TROUPE_TRY(auto node, runtime::connect(system, *where, keys, cluster.connect_timeout));
  return std::make_unique<remote_node>(std::move(node), *where);
}

std::vector<std::string> compare_numerics(const std::string& ours, const std::string& theirs) {
  auto here = runtime::parse_fingerprint(ours);
  auto there = runtime::parse_fingerprint(theirs);
  if (!here || !there)
    return {"numerics fingerprint: cannot be read"};
  return runtime::differences(*here, *there);
}

bool host_is_loopback(const std::string& host) {
  return runtime::is_loopback(host);
}

void print_output(rank_id rank, const std::string& line) {
  std::fprintf(stderr, "[rank %u] %s\n", rank.value, line.c_str());
}

} // namespace

void init_meta_objects() {
  static std::once_flag once;
  std::call_once(once, [] {
    actors::init_meta_objects();
    caf::io::middleman::init_global_meta_objects();
    caf::core::init_global_meta_objects();
  });
}

expected<void> prepare(caf::actor_system_config& config, const cluster_config& given) {
  trainer_config completed;
  completed.cluster = given;
  TROUPE_TRY(runtime::complete_for_job(completed));
  if (std::getenv(runtime::in_process_variable) == nullptr)
    TROUPE_TRY(runtime::complete_nodes(completed.cluster));
  const auto& cluster = completed.cluster;
  // The node is the driver's own, and so are its workers.
  if (cluster.is_embedded())
    runtime::keep_silent_connections(config);
  if (cluster.insecure) {
    std::fputs("warning: connections are insecure: whoever reaches a port of this run can run code as its owner\n",
               stderr);
    runtime::secure(config, std::nullopt);
    return {};
  }
  TROUPE_TRY(auto keys, runtime::keys_for(cluster));
  if (const auto warning = runtime::expiry_warning(keys, std::chrono::system_clock::now()); !warning.empty())
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  runtime::secure(config, keys);
  return {};
}

actors::trainer_actor spawn_trainer(caf::actor_system& system, const function& train, trainer_config config,
                                    std::function<void(rank_id, const std::string&)> show_output,
                                    const std::filesystem::path& worker_path) {
  return runtime::spawn_trainer_on(system, train, std::move(config), std::move(show_output), worker_path, nullptr);
}

actors::trainer_actor runtime::spawn_trainer_on(caf::actor_system& system, const function& train, trainer_config config,
                                                std::function<void(rank_id, const std::string&)> show_output,
                                                const std::filesystem::path& worker_path,
                                                const std::shared_ptr<kept_processes>& kept) {
  runtime::obey_job_variable(config);
  if (config.scaling.num_workers != worker_range{0}) {
    const auto named = runtime::complete_nodes(config.cluster);
    if (!named)
      throw exception{named.error()};
  }
  runtime::obey_in_process_variable(config);
  runtime::name_run(config);
  const auto program = std::make_shared<const runtime::program_file>(value_or_throw(
      worker_path.empty() ? runtime::program_file::own() : runtime::program_file::open(worker_path.string())));
  actors::trainer_services services;
  std::optional<function> in_process;
  if (config.scaling.num_workers == worker_range{0}) {
    if (!worker_path.empty())
      throw exception{errc::invalid_argument, "scaling.num_workers is 0, which trains in the driver's process, but "
                                              "the training function is in " +
                                                  worker_path.string()};
    in_process = train;
    config.scaling.num_workers = 1;
  }
  // A person takes longer to attach a debugger.
  if (config.run.debug_rank)
    config.run.start_timeout = std::chrono::days{1};
  services.connect_node = [&system, path = program->identity().path, in_process,
                           kept = std::weak_ptr{kept}](const cluster_config& cluster, const std::string& address) {
    return connect_node(system, cluster, address, path, in_process, kept.lock());
  };
  services.find_nodes = runtime::find_nodes;
  services.receive_parts = [is_encrypted = runtime::is_secure(system), ports = config.cluster.ports](
                               const run_id& run, const std::string& secret, const std::filesystem::path& checkpoints) {
    return runtime::open_part_receiver({run, secret, is_encrypted}, checkpoints, ports);
  };
  services.open_mirror = runtime::open_mirror;
  services.open_control_port = [](const std::filesystem::path& directory) {
    return runtime::open_control_port(directory);
  };
  if (kept && !in_process)
    services.group = kept->group();
  services.program_path = program->identity().path;
  services.build_id = program->identity().build_id;
  if (worker_path.empty())
    services.in_one_process = runtime::in_one_process(runtime::own_arguments(), config.run.name);
  services.compare_numerics = compare_numerics;
  services.is_loopback = host_is_loopback;
  services.show_output = show_output ? std::move(show_output) : print_output;
  services.open_monitor = runtime::open_monitor;
  return actors::spawn_trainer(system, train.name, std::move(config), std::move(services));
}

} // namespace troupe
