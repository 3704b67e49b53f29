#pragma once

#include "process/child.hpp"

#include <cstddef>
#include <string_view>

namespace troupe::runtime {

/// The capacity of a pipe.
inline constexpr std::size_t pipe_bytes = 1 << 16;

struct pipe_ends {
  unique_fd read;
  unique_fd write;
};

/// A sealed file in memory for `read_bootstrap`.
[[nodiscard]] expected<unique_fd> make_bootstrap(std::string_view bytes);

/// Starts programs as children of the calling thread: the kernel kills them when that thread ends.
class child_launcher {
 public:
  /// Opens what all children share: /dev/null and the pipe that is their lifeline.
  [[nodiscard]] static expected<child_launcher> make();

  /// Returns once the child executes its program. All signals must be blocked in the calling thread.
  [[nodiscard]] expected<child> launch(const process_spec& spec) const;

 private:
  child_launcher(unique_fd null, pipe_ends lifeline) : null_(std::move(null)), lifeline_(std::move(lifeline)) {}

  unique_fd null_;
  pipe_ends lifeline_;
};

} // namespace troupe::runtime
