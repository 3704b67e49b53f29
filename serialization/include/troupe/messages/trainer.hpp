#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>

/// What a program or another actor asks of a trainer.
namespace troupe {

/// Runs the training. Answered by `run_result` when the run has ended and nothing of it is left.
struct fit_request {
  bool operator==(const fit_request&) const = default;
};

TROUPE_INSPECT(fit_request)

/// Asks a run to end.
struct stop_request {
  /// False: finish the step, take a checkpoint, stop. True: stop now; what came after the last checkpoint is lost.
  bool immediately = false;

  bool operator==(const stop_request&) const = default;
};

TROUPE_INSPECT(stop_request, immediately)

/// Asks for a checkpoint after the step that is under way.
struct checkpoint_request {
  bool operator==(const checkpoint_request&) const = default;
};

TROUPE_INSPECT(checkpoint_request)

/// Asks for another number of workers, after the step that is under way: who is too many is let go, who lacks is
/// started where there is room. Never more than shards.
struct resize_request {
  std::uint32_t workers = 0;

  bool operator==(const resize_request&) const = default;
};

TROUPE_INSPECT(resize_request, workers)

/// Asks a run to hold after the step that is under way, until `resume_request`.
struct pause_request {
  bool operator==(const pause_request&) const = default;
};

TROUPE_INSPECT(pause_request)

/// Lets a run that was paused go on.
struct resume_request {
  bool operator==(const resume_request&) const = default;
};

TROUPE_INSPECT(resume_request)

} // namespace troupe
