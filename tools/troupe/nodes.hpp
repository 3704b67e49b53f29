#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `nodes`, `drain` and `resume`, which ask the nodes of a cluster. Parsing the command line stores the selected
/// one in `chosen`.
void add_nodes(CLI::App& app, command& chosen);

} // namespace troupe::tool
