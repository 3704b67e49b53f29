#pragma once

#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace troupe::actors {

/// What all survivors of a generation do with the step that was under way when it ended.
struct regroup_decision {
  /// Every step up to this one counts as applied: who has not committed it holds its reduced gradient.
  step_id commit_point;
  /// What the barrier of that step has agreed on.
  std::uint64_t commands_agreed = 0;
  /// The most evaluations that anybody has finished, who has, and whether others have not.
  std::uint64_t evaluations = 0;
  worker_id evaluation_source;
  bool evaluations_differ = false;
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
