#pragma once

#include "certs.hpp"

namespace troupe::tool {

/// Adds `submit`, which hands a program to systemd, Slurm or Kubernetes. Parsing the command line stores it in
/// `chosen`.
void add_submit(CLI::App& app, command& chosen);

} // namespace troupe::tool
