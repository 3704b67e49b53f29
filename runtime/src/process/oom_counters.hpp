#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::runtime {

/// The kernel's counts of processes killed for lack of memory: in our control group, which our children share, and on
/// the whole machine. Reads files.
class oom_counters {
 public:
  /// Finds the counters of both versions of control groups, and omits unreadable ones.
  oom_counters();

  /// The present value of each counter.
  [[nodiscard]] std::vector<std::uint64_t> read() const;

  /// An explanation for a process that SIGKILL ended, if a counter has grown since `before`, which `read` returned when
  /// the process started. Empty otherwise.
  [[nodiscard]] std::string evidence(const std::vector<std::uint64_t>& before) const;

 private:
  struct counter {
    std::string path;
    std::string scope;
  };

  std::vector<counter> counters_;
};

} // namespace troupe::runtime
