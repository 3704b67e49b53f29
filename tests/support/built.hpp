#pragma once

#include <string>
#include <string_view>

/// Where tests find what they start and read. No path is compiled into a test, so that ccache shares objects between
/// clones.
namespace troupe::testing {

/// The absolute path of a file or directory of this build, such as `bin/charlm` or `lib/libfake_nvml.so`. The file of
/// that name in the directory TROUPE_TEST_PROGRAMS takes precedence, if there is one: tests may run on another machine
/// than the build, or with other programs. The build directory is TROUPE_TEST_BUILD, which ctest sets, or else the one
/// that the test's own program is in. Throws std::runtime_error if the file does not exist.
[[nodiscard]] std::string built(std::string_view path);

/// The absolute path of a file or directory of the checkout, or of the checkout itself if `path` is empty. The checkout
/// is TROUPE_TEST_SOURCES, which ctest sets, or else the one that the build was configured from. Throws
/// std::runtime_error if the file does not exist.
[[nodiscard]] std::string sources(std::string_view path);

// Programs that many tests start.

[[nodiscard]] inline std::string caf_node_program() {
  return built("bin/caf-node");
}

[[nodiscard]] inline std::string charlm_program() {
  return built("bin/charlm");
}

[[nodiscard]] inline std::string predict_program() {
  return built("bin/predict");
}

[[nodiscard]] inline std::string troupe_program() {
  return built("bin/troupe");
}

} // namespace troupe::testing
