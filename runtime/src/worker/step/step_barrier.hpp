#pragma once

#include "worker/group/group_membership.hpp"
#include "worker/life/command_inbox.hpp"
#include "worker/state/checkpointer.hpp"

#include <troupe/tracked_state.hpp>

#include <optional>

namespace troupe::runtime {

/// The barrier of a step: the ranks agree on the commands that take effect, on the checkpoints in flight, and on the
/// state that they have. Used by the training thread.
class step_barrier {
 public:
  step_barrier(group_membership& members, checkpointer& checkpoints, command_inbox& commands, tracked_state& state)
      : members_(members), checkpoints_(checkpoints), commands_(commands), state_(state) {}

  /// The reduced gradient of `step` is here. On return the step is committed. Throws `exception`: `errc::aborted` where
  /// the group was lost, `errc::mismatch` where replicas differ, naming tensor and ranks.
  void commit(step_id step);

 private:
  [[nodiscard]] std::optional<std::uint64_t> digest_to_compare(step_id step) const;
  [[noreturn]] void report_different_replicas(step_id step);

  group_membership& members_;
  checkpointer& checkpoints_;
  command_inbox& commands_;
  tracked_state& state_;
  /// The first step that this worker committed.
  std::optional<step_id> first_;
};

} // namespace troupe::runtime
