#pragma once

#include <built.hpp>

#include <cstdlib>
#include <filesystem>

namespace troupe::testing {

/// The directory of files written by another program: the checkout's, or fresh ones.
inline std::filesystem::path sample_files() {
  const auto* fresh = std::getenv("TROUPE_DATA_SAMPLES");
  return fresh != nullptr ? fresh : sources("tests/data/data_sets");
}

} // namespace troupe::testing
