#include "cluster_options.hpp"

#include <command_line.hpp>

#include <troupe/runtime/nodes.hpp>

namespace troupe::tool {

void add_cluster_options(CLI::App& command, cluster_config& given) {
  apps::add_node_names(command, given);
  command.get_option("--nodes")->description(
      "HOST:PORT of caf-nodes, separated by commas, or dns:NAME (default: $TROUPE_NODES)");
  command.get_option("--hosts")->description("File with a line HOST[:PORT] for each caf-node (default: $TROUPE_HOSTS)");
  command.get_option("--discover")->description("Program that prints such lines");
  command.add_option("--keys", given.keys,
                     "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys). Beyond this machine, this "
                     "host needs a certificate with the role driver");
  command.add_flag("--insecure", given.insecure, "Connect without TLS, to nodes that run with --insecure");
}

expected<void> complete_cluster(cluster_config& given) {
  TROUPE_TRY(runtime::complete_nodes(given));
  if (given.is_embedded())
    return fail(errc::invalid_argument,
                "which nodes? Name them with --nodes, --hosts or --discover, or in the variable "
                "TROUPE_NODES or TROUPE_HOSTS");
  return {};
}

} // namespace troupe::tool
