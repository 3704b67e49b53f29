#include <serve/process_options.hpp>

#include <command_line.hpp>

#include <troupe/runtime/nodes.hpp>

#include <string>

namespace serve {

using namespace troupe;

process_options::process_options(CLI::App& cli) {
  auto* group = cli.add_option_group("Replicas in processes");
  group->add_flag("--processes", are_processes_,
                  "Each replica is a process of its own, which starts again when it ends: on this machine, or on "
                  "nodes");
  apps::add_nodes(*group, config_.cluster);
  // Of training: what is sent to replicas is encrypted.
  group->remove_option(group->get_option("--trusted-network"));
  group->get_option("--port-range")
      ->description("Ports for everything that listens for replicas: two for each on its host, two on this one");
  group->add_option("--keys", config_.cluster.keys,
                    "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  group->add_flag("--insecure", config_.cluster.insecure, "Connect to nodes without TLS");
  group->add_option("--cpus-per-replica", config_.resources_per_replica.cpus,
                    "CPUs that each process leases of its node (default: none, they share them)");
  group
      ->add_option("--memory-per-replica", config_.resources_per_replica.memory_bytes,
                   "Memory that each process leases, such as 8GiB (counted, not enforced; default: none)")
      ->transform(CLI::AsSizeValue(false));
  apps::add_named_values(
      *group, "--node-label",
      [this](const std::string& name, const std::string& value) { config_.node_labels[name] = value; },
      "Only nodes with this label (caf-node --label) get replicas");
}

std::optional<serving::remote_config> process_options::given() const {
  if (!are_processes_ && config_.cluster.is_embedded())
    return std::nullopt;
  auto result = config_;
  if (const auto named = runtime::complete_nodes(result.cluster); !named)
    throw exception{named.error()};
  return result;
}

} // namespace serve
