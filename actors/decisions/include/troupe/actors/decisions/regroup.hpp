#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace troupe::actors {

/// How the survivors of a generation handle the step that was in progress when it ended.
struct regroup_decision {
  /// Steps up to this one count as applied. A survivor that has not committed it holds its reduced gradient.
  step_id commit_point;
  /// The commands that the barrier of that step has agreed on.
  std::uint64_t commands_agreed = 0;
  /// The highest number of evaluations that a member has finished.
  std::uint64_t evaluations = 0;
  /// If members differ in that, a member that has the result of the last evaluation.
  std::optional<worker_id> evaluation_source;
  /// For the log.
  std::string reason;

  bool operator==(const regroup_decision&) const = default;
};

/// Decides from the reports of all survivors that have the state, of which there is at least one. Pure.
///
/// A worker leaves the barrier of a step only after all workers have the step's reduced gradient. If one survivor has
/// committed step k, the others hold its gradient, and all apply it. If none has, none has applied it, and all compute
/// it again: the result has the same bits under any ownership. Fails with `errc::internal` if the reports contradict
/// that.
[[nodiscard]] expected<regroup_decision> decide_regroup(std::span<const regroup_report> reports);

} // namespace troupe::actors
