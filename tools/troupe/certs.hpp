#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace troupe::tool {

/// What a chosen subcommand does; returns the program's exit code.
using command = std::function<int()>;

/// Adds `certs init` and `certs issue HOST`: the keys of a cluster. Whichever is given on the command line puts itself
/// into `chosen`.
void add_certs(CLI::App& app, command& chosen);

} // namespace troupe::tool
