#pragma once

#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

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
  /// What has computed the steps up to this one, oldest first.
  std::vector<program_span> programs;
  /// The checkpoint of another run that this one began with, now or before; empty for none.
  std::string loaded_from;
  std::optional<resumed_plan> resumed;
  /// What rank 0 had reported last when it was taken; empty unless it is of this run.
  metric_map metrics;
  metric_steps metrics_from;
  /// How long the run had been training, in seconds.
  double seconds = 0;
  /// The run was finished with `step` by a decision of its own.
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

/// Whether what writers of checkpoints have left that crashed is removed. Those of a run that goes on may still write.
enum class abandoned_parts : std::uint8_t { remove, keep };

/// Looks for the latest good checkpoint of the run, else for the one whose state is lent. Sets newer checkpoints aside
/// that cannot be read. Fails where a checkpoint is there but must not, or cannot, be gone on from.
[[nodiscard]] expected<starting_state> find_starting_state(const run_directory& directory, const trainer_config& config,
                                                           const run_identity& identity, abandoned_parts abandoned);

} // namespace troupe::actors
