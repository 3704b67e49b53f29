#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `replay`, `bisect`, `run` with its subcommands, and short forms of some of these. Parsing the command line
/// stores the selected one in `chosen`.
void add_run(CLI::App& app, command& chosen);

/// Adds `now`, which has a running run take a checkpoint, to `checkpoint`.
void add_save_now(CLI::App& checkpoint, command& chosen);

} // namespace troupe::tool
