#pragma once

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

  bool operator==(const load_options&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, load_options& x) {
  return f.object(x).fields(f.field("allow_missing", x.allow_missing), f.field("ignore_extra", x.ignore_extra),
                            f.field("renames", x.renames));
}

} // namespace troupe
