#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace troupe::runtime {

/// What a process uses of its host.
struct process_usage {
  std::uint64_t resident_bytes = 0;
  /// Of all its threads, user and system, since its start.
  std::chrono::nanoseconds cpu{};

  bool operator==(const process_usage&) const = default;
};

/// Nothing for a process that is gone or a zombie, or where /proc cannot be read. Reads two small files.
[[nodiscard]] std::optional<process_usage> usage_of(pid_t pid);

/// The resident memory of this process; 0 where /proc cannot be read. Takes some microseconds.
[[nodiscard]] std::uint64_t resident_bytes() noexcept;

} // namespace troupe::runtime
