#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `replay`, `bisect` and `run show`. Parsing the command line stores the selected one in `chosen`.
void add_run(CLI::App& app, command& chosen);

} // namespace troupe::tool
