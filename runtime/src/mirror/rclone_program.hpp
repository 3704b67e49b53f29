#pragma once

#include "process/program_runner.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/program.hpp>

#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// How a call of rclone ended.
struct rclone_outcome {
  int exit_code = 0;
  /// The lines of its standard output.
  std::vector<std::string> out;
  /// The last lines of its standard error, in one.
  std::string problem;

  [[nodiscard]] bool succeeded() const noexcept { return exit_code == 0; }
  /// A directory or file that it was to read does not exist.
  [[nodiscard]] bool found_nothing() const noexcept { return exit_code == 3 || exit_code == 4; }
};

/// The program rclone, run as a child process: one call at a time. A child ends with this object, and with this
/// process.
class rclone_program {
 public:
  /// `name` is looked for in PATH if it has no slash. Fails with `errc::not_found`, saying how to install it.
  [[nodiscard]] static expected<rclone_program> find(const std::string& name);

  /// Calls rclone with these arguments, besides those that say how long it may wait and that it asks nobody. It gets
  /// this process's environment, and so finds its configuration. Fails if it cannot be started or a signal ends it;
  /// with `errc::aborted` if `stop` is requested: it is asked to end, and killed after two seconds.
  [[nodiscard]] expected<rclone_outcome> call(std::vector<std::string> arguments, const std::stop_token& stop);

 private:
  rclone_program(program_file program, program_runner runner)
      : program_(std::move(program)), runner_(std::move(runner)) {}

  program_file program_;
  program_runner runner_;
};

} // namespace troupe::runtime
