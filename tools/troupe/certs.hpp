#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace troupe::tool {

/// Runs the selected subcommand; returns the program's exit code.
using command = std::function<int()>;

/// Adds `certs init`, `issue`, `renew`, `revoke` and `list`, which make the keys of a cluster and look after them.
/// Parsing the command line stores the selected one in `chosen`.
void add_certs(CLI::App& app, command& chosen);

} // namespace troupe::tool
