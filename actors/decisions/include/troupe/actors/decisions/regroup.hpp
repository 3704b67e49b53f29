#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace troupe::actors {

/// What all survivors of a generation do with the step that was under way when it ended.
struct regroup_decision {
  /// Every step up to this one counts as applied: who has not committed it holds its reduced gradient.
  step_id commit_point;
  /// What the barrier of that step has agreed on.
  std::uint64_t commands_agreed = 0;
  /// The most evaluations that any member has finished.
  std::uint64_t evaluations = 0;
  /// If members differ in that: one that has the result of the last.
  std::optional<worker_id> evaluation_source;
  /// For the log.
  std::string reason;

  bool operator==(const regroup_decision&) const = default;
};

/// Decides from the reports of all survivors, of which there is at least one. Pure.
///
/// A step's barrier is left by somebody only after all have its reduced gradient. So if one survivor has committed step
/// k, the others hold its gradient, and all apply it; if nobody has, nobody has applied it, and all compute it again:
/// the same bits, whoever computes. Fails with `errc::internal` where reports contradict that.
[[nodiscard]] expected<regroup_decision> decide_regroup(std::span<const regroup_report> reports);

} // namespace troupe::actors
