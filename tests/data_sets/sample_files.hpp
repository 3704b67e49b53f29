#pragma once

#include <cstdlib>
#include <filesystem>

namespace troupe::testing {

/// The directory of files written by another program: the checkout's, or fresh ones.
inline std::filesystem::path sample_files() {
  const auto* fresh = std::getenv("TROUPE_DATA_SAMPLES");
  return fresh != nullptr ? fresh : TROUPE_TEST_DATA;
}

} // namespace troupe::testing
