#pragma once

#include "process/output_pipe.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// A child process and what its supervisor knows about it. The child leads a process group of its own, whose number the
/// kernel cannot reuse before the child is reaped.
struct child {
  pid_t pid = 0;
  unique_fd pidfd;

  /// The output stream, then the error stream.
  std::array<output_pipe, 2> outputs;

  /// To a reusable child: see `process_supervisor::reuse`.
  unique_fd reuse_socket;

  /// The last `max_last_lines` lines of output.
  std::deque<std::string> last_lines;

  /// The values of `oom_counters` when the child started.
  std::vector<std::uint64_t> oom_kills_before;

  bool kill_requested = false;

  /// Set once the child is dead. It stays a zombie, so that its pid is not reused, until its output is drained.
  std::optional<exit_report> report;

  /// When a dead child is reaped even if other processes still hold its pipes open.
  std::chrono::steady_clock::time_point drained_by;

  [[nodiscard]] bool is_drained() const;

  /// False when the child has been reaped.
  [[nodiscard]] bool send_signal(int signal) const;

  void kill_group();

  /// How the child ended; nothing while it lives. Leaves it a zombie.
  [[nodiscard]] std::optional<exit_report> check_exit() const;

  /// Waits for the child's end and releases its pid.
  void reap();
};

} // namespace troupe::runtime
