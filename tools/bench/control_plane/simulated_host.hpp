#pragma once

#include "events.hpp"

#include <cstdint>
#include <filesystem>

namespace troupe::bench {

/// One host of a simulated cluster.
struct host_setup {
  std::filesystem::path keys;
  /// How many workers it offers to take in.
  std::uint32_t capacity = 0;
  event_writer events;
  /// A byte for each worker that is to be killed.
  int commands = -1;
};

/// A node as caf-node has it, on a port of loopback, with actors in the place of worker processes. They speak the
/// protocol of a worker and compute nothing. Ends the process when nobody can give commands any more. Throws
/// `exception`.
[[noreturn]] void run_host(const host_setup& setup);

} // namespace troupe::bench
