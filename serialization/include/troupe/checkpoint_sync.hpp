#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>

namespace troupe {

/// How the parts of checkpoints get into the run's directory, and their bytes back to the workers.
enum class checkpoint_sync : std::uint8_t {
  /// Each worker checks whether it sees that directory; if not, its parts are streamed.
  automatic = 1,
  /// Workers write and read files: they share a file system with the driver.
  shared = 2,
  /// All parts go to the driver over connections of their own.
  stream = 3,
};

TROUPE_INSPECT_ENUM(checkpoint_sync, automatic, stream)

} // namespace troupe
