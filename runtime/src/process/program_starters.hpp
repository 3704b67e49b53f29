#pragma once

#include "process/child_launcher.hpp"
#include "process/oom_counters.hpp"

#include <troupe/runtime/process.hpp>

#include <functional>
#include <memory>
#include <optional>

namespace troupe::runtime {

/// A child to start, and who is told.
struct start_request {
  process_spec spec;
  std::function<void(expected<pid_t>)> done;
};

struct start_outcome {
  start_request asked;
  expected<child> made;
};

/// Starts children on threads of its own, one for each file system that programs are on: who executes a program waits
/// for its disk, and one that does not answer holds up no program of another. Thread-safe.
class program_starters {
 public:
  /// `has_started` is called in those threads when there is another outcome.
  [[nodiscard]] static expected<program_starters> make(std::function<void()> has_started);

  program_starters(program_starters&&) noexcept = default;
  program_starters& operator=(program_starters&&) = delete;
  /// Gives threads that start a child some time to end, and leaves them behind if a disk holds them.
  ~program_starters();

  /// Does not wait.
  void start_soon(start_request request);
  /// The oldest outcome that was not taken yet.
  [[nodiscard]] std::optional<start_outcome> take();
  /// Starts a child of the calling thread. Waits for the program's disk. All signals must be blocked.
  [[nodiscard]] expected<child> start(const process_spec& spec) const;
  /// From now on nothing is started and there are no outcomes; a child that is being started is killed.
  void stop();

 private:
  struct shared_state;
  explicit program_starters(std::shared_ptr<shared_state> state) : state_(std::move(state)) {}

  /// Threads that are left behind have it, too.
  std::shared_ptr<shared_state> state_;
};

} // namespace troupe::runtime
