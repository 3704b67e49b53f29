#include "cluster_options.hpp"

namespace troupe::tool {

void add_cluster_options(CLI::App& command, cluster_choice& given) {
  command
      .add_option("--cluster", given.entries,
                  "HOST:PORT of one or more of its nodes, separated by commas (default: $TROUPE_CLUSTER)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->envname("TROUPE_CLUSTER");
  command.add_option("--keys", given.access.keys,
                     "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys). Beyond this machine, this "
                     "host needs a certificate with the role driver");
  command.add_flag("--insecure", given.access.insecure, "Connect without TLS, to nodes that run with --insecure");
}

error no_cluster() {
  return {errc::invalid_argument,
          "which cluster? Name one of its nodes with --cluster HOST:PORT, or in the variable TROUPE_CLUSTER"};
}

} // namespace troupe::tool
