#pragma once

#include "checkpoint/commands.hpp"

#include <troupe/runtime/run_access.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// The commands that watch and steer a run from another terminal. Each prints to standard output, errors to standard
/// error, and returns the program's exit code: `exit_good`, `exit_found` for a negative answer (refused, failed, the
/// driver is lost), `exit_trouble` if there is nobody to ask.
namespace troupe::tool {

/// Which run.
struct run_choice {
  /// A directory, or a name in `storage`.
  std::string run;
  std::filesystem::path storage = "runs";
  output_format output = output_format::text;
};

/// The run that is meant. Fails with where it looked.
[[nodiscard]] expected<runtime::run_access> open_run(const run_choice& which);

/// What is known of a run.
struct known_status {
  nlohmann::ordered_json status;
  /// Why its driver did not answer.
  std::optional<runtime::absent_driver> absent;
};

/// Its driver's answer, or else what its files tell.
[[nodiscard]] known_status ask_or_read(const runtime::run_access& run);

struct list_runs_arguments {
  std::filesystem::path storage = "runs";
  output_format output = output_format::text;
};

/// Lists the runs of a storage directory, with what they do.
[[nodiscard]] int list_all_runs(const list_runs_arguments& given);

/// Shows what a run does. `exit_found` if it has failed or its driver is lost.
[[nodiscard]] int show_status(const run_choice& given);

/// Shows what a run does until it ends, and returns its exit code.
[[nodiscard]] int watch(const run_choice& given);

struct stop_arguments {
  run_choice which;
  /// Without finishing the step and taking a checkpoint.
  bool now = false;
  bool waits = true;
};

/// Returns when the run has ended.
[[nodiscard]] int stop(const stop_arguments& given);

struct pause_arguments {
  run_choice which;
  bool waits = true;
};

/// Returns when no step is under way any more.
[[nodiscard]] int pause(const pause_arguments& given);

[[nodiscard]] int resume(const run_choice& given);

struct resize_arguments {
  run_choice which;
  std::uint32_t workers = 0;
};

[[nodiscard]] int resize(const resize_arguments& given);

struct save_arguments {
  run_choice which;
  bool waits = true;
};

/// Returns when the checkpoint is durable, and prints its path.
[[nodiscard]] int save_now(const save_arguments& given);

struct logs_arguments {
  run_choice which;
  std::optional<std::uint32_t> rank;
  bool follows = false;
  /// Of each log, the last so many lines; nothing: all.
  std::optional<std::uint64_t> lines;
};

/// Prints what the workers wrote.
[[nodiscard]] int logs(const logs_arguments& given);

} // namespace troupe::tool
