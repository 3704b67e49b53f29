#pragma once

#include <troupe/inspect.hpp>

#include <map>
#include <string>

namespace troupe {

/// How the state in a checkpoint of another run maps to this run's. By default both must have the same tensors.
struct load_options {
  /// Tracked tensors missing from the checkpoint keep the values that the training function has set.
  bool allow_missing = false;
  /// Tensors of the checkpoint that are not tracked are ignored.
  bool ignore_extra = false;
  /// Maps a tensor's name in the checkpoint to its tracked name.
  std::map<std::string, std::string> renames = {};
  /// The step number, and with it schedule and data order, continues instead of beginning at 0.
  bool keep_step = false;

  bool operator==(const load_options&) const = default;
};

TROUPE_INSPECT(load_options, allow_missing, ignore_extra, renames, keep_step)

} // namespace troupe
