#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `checkpoint ls`, `show`, `verify`, `diff`, `export`, `import`, `fetch` and `rm`. Parsing the command line
/// stores the selected one in `chosen`.
void add_checkpoint(CLI::App& app, command& chosen);

} // namespace troupe::tool
