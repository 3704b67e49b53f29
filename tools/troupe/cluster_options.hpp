#pragma once

#include <troupe/config/cluster.hpp>

#include <CLI/CLI.hpp>

namespace troupe::tool {

/// Adds `--nodes`, `--hosts`, `--discover`, `--keys` and `--insecure`.
void add_cluster_options(CLI::App& command, cluster_config& given);

/// After parsing: adds what the environment says. Fails with `errc::invalid_argument` where no node is named.
[[nodiscard]] expected<void> complete_cluster(cluster_config& given);

} // namespace troupe::tool
