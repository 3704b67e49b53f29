#pragma once

#include <chrono>
#include <cstdint>
#include <sys/types.h>

namespace troupe::bench {

/// Resident memory of a process.
struct resident_memory {
  std::uint64_t now_bytes = 0;
  std::uint64_t most_bytes = 0;
};

/// The memory of this process or a child. Throws `exception` if it has ended.
[[nodiscard]] resident_memory memory_of(pid_t process);

/// The processor time that a process has used. Throws as above.
[[nodiscard]] std::chrono::nanoseconds cpu_time_of(pid_t process);

} // namespace troupe::bench
