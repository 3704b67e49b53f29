#pragma once

#include "run/control_commands.hpp"

#include <CLI/CLI.hpp>

namespace troupe::tool {

/// Adds `--cluster`, `--keys` and `--insecure`.
void add_cluster_options(CLI::App& command, cluster_choice& given);

/// For commands that need one.
[[nodiscard]] error no_cluster();

} // namespace troupe::tool
