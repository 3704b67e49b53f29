#pragma once

#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/config/run.hpp>
#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/line_file.hpp>
#include <troupe/tensor.hpp>
#include <troupe/types.hpp>

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::actors {

/// What the metrics say that a run has written before.
struct metrics_history {
  /// Rank 0's last value of each metric, and the step that it is from.
  metric_map metrics;
  metric_steps metrics_from;
  /// How long the run had been training by its last line.
  double seconds = 0;
};

/// What ends a wait for a directory that another driver holds, and who hears of it; both may be empty.
struct lock_watch {
  std::stop_token hurry = {};
  /// Called once, with text for users.
  std::function<void(std::string)> tell = {};
};

/// The directory of a run, which one driver at a time may hold:
///
///     <storage_path>/<name>/
///       run.json        what the run is: configuration, program, seed (latest attempt)
///       result.json     how it ended
///       metrics.jsonl   one line for each report of each rank
///       events.jsonl    what happened: one line for each start, failure, generation, pause, checkpoint and warning
///       times.jsonl     where the time of each rank's steps went: about a line a second for each rank
///       ledger.jsonl    which process computed which shards (only with keep_ledger)
///       checkpoints/    step-00000100/ ...
///       logs/           worker-0.log ..., worker-0.log.1 with older lines, and ranks.jsonl: whose logs they are
///       .journal-0, .journal-1  what another driver needs to take the run over, with its secret; mode 0600
///       .lock           held by the driver, with its process id and host
///       .control        the driver's socket, for those who watch and steer the run; mode 0600
class run_directory {
 public:
  /// Makes the directory, or takes over an existing one, and locks it; with resume = restart, what is there is moved
  /// aside first. Waits up to `lock_wait` while another driver holds it. Fails with `errc::already_exists` (resume =
  /// never and a run has begun in it, or another driver holds it) or `errc::io_error` (no space, read-only, no right to
  /// write), before anything is started.
  [[nodiscard]] static expected<run_directory> open(const run_config& config, const lock_watch& watch = {});

  run_directory(run_directory&& other) noexcept;
  run_directory& operator=(run_directory&& other) noexcept;
  ~run_directory();

  /// Where the directory of an earlier run is that was moved aside; empty if none was.
  [[nodiscard]] const std::filesystem::path& moved_aside() const noexcept { return moved_aside_; }

  /// Where a run of this name is, as an absolute path.
  [[nodiscard]] static std::filesystem::path path_of(const run_config& config);

  [[nodiscard]] const std::filesystem::path& root() const noexcept { return root_; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }

  /// Forgets lines of metrics, times and ledger after `step`: they will be written again. Begins the files anew for
  /// step 0. Returns what the lines say that are left.
  [[nodiscard]] expected<metrics_history> rewind(step_id step);
  /// What the lines up to `step` say, which all stay.
  [[nodiscard]] metrics_history history_until(step_id step) const;

  /// The last step of which rank 0 has a whole line in metrics.jsonl; 0 for none.
  [[nodiscard]] step_id last_reported() const;

  [[nodiscard]] expected<void> write_run(const nlohmann::json& description) const;
  [[nodiscard]] expected<void> write_result(const run_result& result) const;

  /// Goes on with the files of a driver that has ended. Workers and nodes may send once more what that one has written:
  /// of the next that each sends, what is there already is left out.
  void continue_files();

  /// Appends to metrics.jsonl, times.jsonl and ledger.jsonl. Lines that a full disk does not take are kept, up to a
  /// limit, and tried again with the next. Fails with `errc::io_error` while there are any.
  [[nodiscard]] expected<void> append(const metrics_batch& batch, std::uint32_t pid);
  /// Appends to events.jsonl, with the time in front. Fails as above.
  [[nodiscard]] expected<void> append_event(std::chrono::system_clock::time_point when,
                                            const nlohmann::ordered_json& what);
  /// Appends to the log of a worker with this rank, which is begun anew when it is full. What a full disk does not take
  /// is lost: fails with `errc::io_error`.
  [[nodiscard]] expected<void> append_output(const worker_output& output, rank_id rank);

  /// How many lines of these files were dropped since this was asked last.
  [[nodiscard]] std::uint64_t take_dropped() noexcept;

 private:
  run_directory() = default;

  /// A file of lines that belong to steps.
  struct step_file {
    serialization::line_file* file;
    std::filesystem::path path;
  };
  [[nodiscard]] std::array<step_file, 3> step_files() {
    return {
        {{&metrics_, root_ / "metrics.jsonl"}, {&times_, root_ / "times.jsonl"}, {&ledger_, root_ / "ledger.jsonl"}}};
  }

  std::filesystem::path root_;
  int lock_ = -1;
  serialization::line_file metrics_{{}};
  serialization::line_file times_{{}};
  serialization::line_file ledger_{{}};
  serialization::line_file events_{{}};
  std::filesystem::path moved_aside_;
  std::uint64_t log_limit_bytes_ = 0;
  /// As ranks.jsonl has them from this driver.
  std::map<worker_id, rank_id> log_ranks_;

  /// What another driver has written last, by digest, and whose lines have been compared with it.
  struct earlier_lines {
    std::set<std::uint64_t> digests;
    std::set<worker_id> compared;
    std::set<worker_id> compared_output;
  };
  std::optional<earlier_lines> earlier_;
};

/// What a run is, as far as its result depends on it.
struct run_identity {
  std::string build_id;
  std::uint64_t seed = 0;
  std::uint32_t shards = 0;
  std::uint32_t tree_version = 0;
  /// JSON text with sorted keys.
  std::string configuration;

  bool operator==(const run_identity&) const = default;
};

TROUPE_INSPECT(run_identity, build_id, seed, shards, tree_version, configuration)

/// Whether the workers of a run are those of this program. Fails with `errc::mismatch`, naming every difference. Pure.
[[nodiscard]] expected<void> compare_with_journal(const run_identity& now, const run_identity& then);

/// Whether a run may go on from a checkpoint, from which it may differ in what is allowed. Fails with `errc::mismatch`,
/// naming every difference. Pure.
[[nodiscard]] expected<void> compare_with_checkpoint(const run_identity& now, const serialization::manifest& then,
                                                     const allowed_changes& allowed);

/// What the workers' plans are compared with.
[[nodiscard]] resumed_plan plan_of(const serialization::manifest& then);

/// The lines by which plans are compared: "name f32 [3, 4]".
[[nodiscard]] std::string describe_tensors(const std::vector<tensor_spec>& tensors);

} // namespace troupe::actors
