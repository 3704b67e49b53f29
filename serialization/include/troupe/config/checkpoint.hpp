#pragma once

#include <troupe/checkpoint_sync.hpp>
#include <troupe/serialization/checkpoint/retention.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe {

/// A second place for a run's checkpoints and results, which are copied there behind training's back.
struct mirror_config {
  /// A directory on another device or host, or `rclone:REMOTE:PATH` for what rclone reaches, with rclone's own
  /// configuration. The run's copy is `to / name`, laid out like the run's directory. Empty: there is no mirror.
  std::string to = {};
  /// The number of latest checkpoints to keep there; at least 1. The best by `checkpoint_config::score_attribute` are
  /// kept as well.
  std::uint32_t num_to_keep = 2;
  /// How long a run that ends waits until the mirror has its last checkpoint and its result.
  std::chrono::milliseconds final_wait{300'000};
  /// The program: a name in PATH, or a path.
  std::string rclone = "rclone";
};

/// When to take checkpoints, and which to keep. One is always taken after the last step, and when the run is stopped.
struct checkpoint_config {
  /// Interval in steps; 0 for none in between.
  std::uint64_t every_steps = 0;
  /// The number of latest checkpoints to keep; at least 1.
  std::uint32_t num_to_keep = 2;
  /// A metric of `step.report`. The checkpoint with its best value in rank 0's latest report is also kept, at any age.
  /// Empty: no checkpoint is kept for its metric. A checkpoint without the metric is never the best.
  std::string score_attribute = {};
  score_mode score_order = score_mode::max;
  /// The number of best checkpoints to keep besides the latest; at least 1. Without a `score_attribute` there are none.
  std::uint32_t num_best_to_keep = 1;
  /// Training stops only to copy the state; up to this many checkpoints are written in the background. A checkpoint
  /// that comes due while this many are being written is skipped with a warning; with a `score_attribute` it may be the
  /// best, so training waits until it can be taken. 0: training waits for each one.
  std::uint32_t max_in_flight = 1;
  /// How the parts reach the driver's host.
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Does not write unchanged tensors (frozen layers, large tables) again: a chunk of 1 MiB or more that equals the one
  /// in the previous checkpoint gets a file of its own, and the next checkpoints hard-link it. The file is read back
  /// and compared each time, and written again every 8th time. A checkpoint's directory stays complete by itself.
  /// Everything is written on file systems without hard links, and where parts are streamed.
  bool reuse_unchanged = true;
  mirror_config mirror = {};
};

} // namespace troupe
