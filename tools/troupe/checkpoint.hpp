#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `checkpoint ls`, `show`, `verify`, `diff`, `export`, `import` and `rm`. Whichever is given on the command line
/// puts itself into `chosen`.
void add_checkpoint(CLI::App& app, command& chosen);

} // namespace troupe::tool
