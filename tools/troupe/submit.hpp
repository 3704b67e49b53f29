#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `submit`, which has a node of a cluster run a program. Parsing the command line stores it in `chosen`.
void add_submit(CLI::App& app, command& chosen);

} // namespace troupe::tool
