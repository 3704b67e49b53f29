#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>

/// The messages of a program or another actor to a trainer.
namespace troupe {

/// Runs the training. Answered by `run_result` when the run and all its processes have ended.
struct fit_request {
  bool operator==(const fit_request&) const = default;
};

TROUPE_INSPECT(fit_request)

/// Asks a run to end.
struct stop_request {
  /// False: finish the step, take a checkpoint, stop. True: stop now and lose what came after the last checkpoint.
  bool immediately = false;

  bool operator==(const stop_request&) const = default;
};

TROUPE_INSPECT(stop_request, immediately)

/// Asks for a checkpoint after the current step.
struct checkpoint_request {
  bool operator==(const checkpoint_request&) const = default;
};

TROUPE_INSPECT(checkpoint_request)

/// Asks for another number of workers after the current step. Surplus workers are released; missing ones are started
/// where there is capacity. At most one worker per shard.
struct resize_request {
  std::uint32_t workers = 0;

  bool operator==(const resize_request&) const = default;
};

TROUPE_INSPECT(resize_request, workers)

/// Pauses a run after the current step, until `resume_request`.
struct pause_request {
  bool operator==(const pause_request&) const = default;
};

TROUPE_INSPECT(pause_request)

/// Resumes a paused run.
struct resume_request {
  bool operator==(const resume_request&) const = default;
};

TROUPE_INSPECT(resume_request)

} // namespace troupe
