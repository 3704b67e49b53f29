#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::tool {

/// What a command reads and who sees what it writes.
struct command_streams {
  /// Its standard input; empty: this program's.
  std::filesystem::path input = {};
  /// Its standard output is returned instead of shown.
  bool captures = false;
};

struct finished_command {
  /// 128 and the signal's number if a signal ended it.
  int code = 0;
  /// What was captured, without the last newline.
  std::string out;
};

/// Runs a command, found in PATH, and waits for its end. Ctrl-C is the command's. Fails if it cannot be started.
[[nodiscard]] expected<finished_command> run_command(const std::vector<std::string>& words,
                                                     const command_streams& streams = {});

} // namespace troupe::tool
