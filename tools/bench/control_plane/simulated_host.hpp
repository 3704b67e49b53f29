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
  /// Each byte read from here kills a worker.
  int commands = -1;
};

/// A node like that of caf-node, on a loopback port, with actors instead of worker processes. They follow the protocol
/// of a worker and compute nothing. Ends the process when the commands' writer is gone. Throws `exception`.
[[noreturn]] void run_host(const host_setup& setup);

} // namespace troupe::bench
