#pragma once

#include <troupe/config/scaling.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What a run does at present.
enum class run_activity : std::uint8_t {
  /// Its nodes or worker processes are not all there yet, or it begins again after it has lost all workers.
  starting = 1,
  running = 2,
  /// A pause was asked for, and the step is not over.
  pausing = 3,
  paused = 4,
  /// It has too few workers, or waits for silent ones.
  held = 5,
  /// A stop was asked for, and the step or the checkpoint is not over.
  stopping = 6,
  /// The training function has returned, or the run has failed: its processes end and its result is written.
  ending = 7,
};

/// "starting", ...
[[nodiscard]] std::string_view to_string(run_activity activity) noexcept;

/// What the trainer knows of a run that its events do not tell.
struct run_condition {
  run_activity activity = run_activity::starting;
  generation_id generation;
  /// From 1; 0 before processes were started.
  std::uint32_t attempt = 0;
  /// The furthest step that any worker has applied.
  step_id furthest;
  /// The members, by rank.
  std::vector<worker_info> workers;
  /// How many are wanted.
  worker_range wanted;
  std::uint64_t failures = 0;
  /// The cause of the last failure; empty if there was none.
  std::string last_failure;

  bool operator==(const run_condition&) const = default;
};

} // namespace troupe::actors
