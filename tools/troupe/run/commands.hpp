#pragma once

#include "checkpoint/commands.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>

/// `troupe replay`, `bisect` and `run show`. Each function prints to standard output, errors to standard error, and
/// returns the program's exit code (`checkpoint/commands.hpp`).
namespace troupe::tool {

struct replay_arguments {
  std::filesystem::path run;
  std::uint64_t step = 0;
  /// The last step; 0: `step` alone.
  std::uint64_t until = 0;
  std::uint32_t workers = 1;
  /// In one process, under gdb.
  bool debug = false;
  /// Instead of the program that `run.json` names.
  std::filesystem::path program;
};

/// Repeats steps of a run in a temporary directory and compares their digests with those that it has recorded. Only
/// reads the run's directory. `exit_found` if a step differs.
[[nodiscard]] int replay(const replay_arguments& given);

struct bisect_arguments {
  std::filesystem::path left;
  std::filesystem::path right;
};

/// Names the first step whose digests differ, and the tensors. `exit_found` if there is one.
[[nodiscard]] int bisect(const bisect_arguments& given);

struct show_run_arguments {
  std::filesystem::path run;
  output_format output = output_format::text;
};

/// Shows what happened in a run: failures first, then metrics, goodput and the timeline.
[[nodiscard]] int show_run(const show_run_arguments& given);

} // namespace troupe::tool
