#pragma once

#include <cstdint>

namespace troupe {

/// How the parts of checkpoints get into the run's directory, and their bytes back to the workers.
enum class checkpoint_sync : std::uint8_t {
  /// Each worker looks whether it sees that directory; if not, its parts are streamed.
  automatic = 1,
  /// Workers write and read files: they share a file system with the driver.
  shared = 2,
  /// All parts go to the driver over connections of their own.
  stream = 3,
};

template <class Inspector>
bool inspect(Inspector& f, checkpoint_sync& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<checkpoint_sync>(value);
    return value >= 1 && value <= 3;
  };
  return f.apply(get, set);
}

} // namespace troupe
