#pragma once

#include "submit/submission.hpp"

#include <troupe/config/run.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// What is done with jobs by the engines that have them, through their own commands. Errors say what the engine said.
namespace troupe::tool {

/// A command for people, and what it does.
struct engine_command {
  std::string words;
  std::string purpose;
};

/// A job that an engine has taken.
struct submitted {
  /// "systemd as troupe-night.service".
  std::string where;
  std::vector<engine_command> commands;
  /// What the user has to know besides.
  std::vector<std::string> warnings;
};

/// Held while a job is submitted or ended: nobody else of this user does either meanwhile.
class submission_lock {
 public:
  /// Waits for it. Fails with `errc::io_error`.
  [[nodiscard]] static expected<submission_lock> take();
  submission_lock(submission_lock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  submission_lock& operator=(submission_lock&&) = delete;
  ~submission_lock();

 private:
  explicit submission_lock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// The systemd manager that this user's jobs have: root's are units of the system.
[[nodiscard]] systemd_manager own_systemd_manager();

/// Fails with `errc::already_exists` while a job of this name waits or runs, and where another service has its unit.
[[nodiscard]] expected<void> refuse_running_unit(const std::string& name, const systemd_manager& manager);
[[nodiscard]] expected<void> refuse_queued_job(const std::string& name);

/// A node for the host of a systemd job, which listens on a free port.
[[nodiscard]] expected<companion_node> make_companion(const std::string& name);

/// Writes, enables and starts the units. Fails with `errc::unreachable` without a systemd manager, and with what the
/// program wrote if it fails at once; then nothing is left of them.
[[nodiscard]] expected<submitted> start_units(const std::string& name, const std::vector<unit_file>& units,
                                              const systemd_manager& manager);

/// Hands a batch script to sbatch.
[[nodiscard]] expected<submitted> queue_script(const std::string& script);

/// Ends a job whose driver need not be asked: systemd's units are stopped and removed, a job of Slurm or Kubernetes is
/// removed. Returns what was done, for people; nothing if the engine does not have it any more, or has another of its
/// name. Holds the lock.
[[nodiscard]] expected<std::optional<std::string>> end_job(const submitted_job& job);

/// This user's job of a run that was named by its directory or by its name, which systemd or Slurm has here; nothing if
/// neither has one. With a directory, only a job that runs above it.
[[nodiscard]] std::optional<submitted_job> find_job(const std::string& run);

/// What an engine does with a job.
enum class job_state : std::uint8_t { unknown, waits, runs, gone };
[[nodiscard]] job_state state_in_engine(const submitted_job& job);

} // namespace troupe::tool
