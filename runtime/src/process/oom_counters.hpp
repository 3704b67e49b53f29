#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::runtime {

/// The kernel's counts of processes that its out-of-memory killer ended: those of our control group, which children
/// stay in, and that of the machine. Reads files; not for several threads.
class oom_counters {
 public:
  /// Finds the counters of both versions of control groups; those that cannot be read are left out.
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
