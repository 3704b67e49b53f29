#pragma once

#include "trainer/severity.hpp"
#include "trainer/starting_state.hpp"
#include <troupe/actors/mirror_storage.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/config/run.hpp>
#include <troupe/error.hpp>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// What a run may begin with, besides what is in its directory. Borrowed.
struct start_sources {
  /// The run's own; null if it has none, or it need not be looked at.
  mirror_storage* mirror = nullptr;
  /// Opens the place of another run, for `load_checkpoint`.
  std::function<expected<std::unique_ptr<mirror_storage>>(const std::string& place)> open = {};
  std::stop_token stop = {};
  /// For what users should know.
  std::function<void(severity, std::string)> tell = {};
  /// This driver has begun the run: the records in its directory are open, and the newest.
  bool is_restart = false;
};

/// Readies a mirror for a run that begins: with resume = restart, moves aside what is there; with resume = never, fails
/// with `errc::already_exists` if checkpoints are there. Fails with `errc::invalid_argument` if it is the run's
/// directory itself.
[[nodiscard]] expected<void> prepare_mirror(mirror_storage& mirror, const run_directory& directory,
                                            const run_config& run, const start_sources& from);

/// As `find_starting_state`. If the mirror has a newer checkpoint than the directory, or the directory has none,
/// fetches it into the directory first, with the run's files that the directory lacks, and what another driver has
/// added to metrics and events since. A mirror that cannot be read is only warned of if the directory has a checkpoint.
/// A checkpoint to load that is at a mirror is fetched into `loaded/`.
[[nodiscard]] expected<starting_state> find_start(const run_directory& directory, trainer_config config,
                                                  const run_identity& identity, const start_sources& from);

} // namespace troupe::actors
