#pragma once

#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// Where the state comes from that a run begins with.
namespace beginning {

/// The training function makes it.
struct fresh {};

/// A checkpoint of this run, whose step count goes on.
struct own {
  /// The checkpoint's.
  std::string directory;
};

/// A checkpoint of another run.
struct other {
  enum class steps : std::uint8_t { begin_anew, go_on };

  /// The checkpoint's.
  std::string directory;
  steps count = steps::begin_anew;
};

} // namespace beginning

/// What a run begins with, at its first start or a later one.
struct starting_state {
  std::variant<beginning::fresh, beginning::own, beginning::other> source;
  step_id step;
  /// The programs that have computed the steps up to this one, oldest first.
  std::vector<program_span> programs;
  /// The checkpoint of another run that this one began with, now or before; empty for none.
  std::string loaded_from;
  std::optional<resumed_plan> resumed;
  /// Rank 0's last metrics before the checkpoint; empty unless it is of this run.
  metric_map metrics;
  metric_steps metrics_from;
  /// How long the run had been training, in seconds.
  double seconds = 0;
  /// The training function finished the run at `step`.
  bool is_finished = false;
  /// Newer checkpoints that could not be used, and why.
  std::vector<std::string> passed_over;

  /// Whether it is from a checkpoint of this run.
  [[nodiscard]] bool is_own() const noexcept { return std::holds_alternative<beginning::own>(source); }
  /// Whether the step count of a checkpoint goes on.
  [[nodiscard]] bool continues_steps() const noexcept;
  /// The checkpoint's directory; empty without one.
  [[nodiscard]] std::string directory() const;
};

/// Whether to remove the leftovers of crashed checkpoint writers. During a takeover, writers may still be active.
enum class abandoned_parts : std::uint8_t { remove, keep };

/// Finds the latest good checkpoint of the run, or else the configured one of another run. Sets unreadable newer
/// checkpoints aside. Fails if a checkpoint exists but the run must not, or cannot, continue from it.
[[nodiscard]] expected<starting_state> find_starting_state(const run_directory& directory, const trainer_config& config,
                                                           const run_identity& identity, abandoned_parts abandoned);

} // namespace troupe::actors
