#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/types.h>
#include <vector>

namespace troupe::chaos {

/// Processes that compute nothing, as fast as they can. The destructor ends them.
class cpu_storm {
 public:
  explicit cpu_storm(std::size_t processes);
  cpu_storm(const cpu_storm&) = delete;
  cpu_storm& operator=(const cpu_storm&) = delete;
  ~cpu_storm();

 private:
  std::vector<pid_t> processes_;
};

/// Writes lines to the standard output of another process, as that itself could. The destructor ends it.
class output_flood {
 public:
  /// Starts a process that writes `bytes` for `pid`, as fast as they are taken.
  output_flood(pid_t pid, std::uint64_t bytes);
  output_flood(const output_flood&) = delete;
  output_flood& operator=(const output_flood&) = delete;
  ~output_flood();

  /// Whether all is written, or the reader is gone.
  [[nodiscard]] bool over();
  [[nodiscard]] std::uint64_t written_bytes() const;

 private:
  struct shared;
  shared* shared_ = nullptr;
  pid_t writer_ = -1;
};

} // namespace troupe::chaos
