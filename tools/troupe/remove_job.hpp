#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `rm`, which removes jobs of a cluster. Parsing the command line stores it in `chosen`.
void add_remove_job(CLI::App& app, command& chosen);

} // namespace troupe::tool
