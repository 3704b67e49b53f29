#pragma once

#include <map>
#include <string>

namespace troupe {

/// How the state in a checkpoint of another run is taken for this run's. By default both have the same tensors.
struct load_options {
  /// Tracked tensors that the checkpoint does not have keep what the training function has put there.
  bool allow_missing = false;
  /// Tensors of the checkpoint that nobody tracks are left out.
  bool ignore_extra = false;
  /// The names of tensors in the checkpoint, and by which they are tracked here.
  std::map<std::string, std::string> renames = {};

  bool operator==(const load_options&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, load_options& x) {
  return f.object(x).fields(f.field("allow_missing", x.allow_missing), f.field("ignore_extra", x.ignore_extra),
                            f.field("renames", x.renames));
}

} // namespace troupe
