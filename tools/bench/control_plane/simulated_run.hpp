#pragma once

#include <cstdint>

namespace troupe::bench {

/// The measurements of one run.
struct run_measures {
  std::uint32_t workers = 0;
  std::uint32_t hosts = 0;
  /// From the driver's start of the run until the last worker has the addresses of the first generation.
  double start_ms = 0;
  /// The driver's processor time until then.
  double start_cpu_ms = 0;
  /// Medians over the workers that were killed: from a worker's end until the driver has formed the next generation,
  /// and until the last worker has its addresses.
  double decided_ms = 0;
  double formed_ms = 0;
  /// The driver's processor time for one.
  double regroup_cpu_ms = 0;
  /// The most that the driver had in memory, less what it had before the run began.
  std::uint64_t memory_bytes = 0;
};

/// How large a simulated run is.
struct run_shape {
  std::uint32_t workers = 64;
  std::uint32_t workers_per_host = 64;
  /// How many workers are killed, one after the other.
  std::uint32_t kills = 3;
};

/// Runs a driver, and hosts with simulated workers, in separate processes. Throws `exception` if anything takes longer
/// than a minute or ends by itself. Forks, so the caller must have only one thread.
[[nodiscard]] run_measures measure_run(const run_shape& shape);

} // namespace troupe::bench
