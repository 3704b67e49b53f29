#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/process.hpp>

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::runtime {

/// How a program ended, and what it wrote.
struct program_outcome {
  exit_report how;
  /// The lines of its standard output, a million at most.
  std::vector<std::string> out;
  /// The last lines of its standard error, 100 at most.
  std::vector<std::string> err;
};

/// Runs programs as child processes, one at a time, until they end. A child ends with this object, and with this
/// process. Used by one thread at a time.
class program_runner {
 public:
  [[nodiscard]] static expected<program_runner> make();

  program_runner(program_runner&&) noexcept;
  program_runner& operator=(program_runner&&) noexcept;
  ~program_runner();

  /// Fails if it cannot be started; with `errc::aborted` if `stop` is requested, and with `errc::timed_out` after
  /// `limit`: the program is asked to end then, and killed after two seconds.
  [[nodiscard]] expected<program_outcome> run(const process_spec& spec, const std::stop_token& stop,
                                              std::chrono::milliseconds limit = std::chrono::years{1});

 private:
  class impl;
  explicit program_runner(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
