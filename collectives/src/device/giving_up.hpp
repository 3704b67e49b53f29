#pragma once

#include "device/abort_escalation.hpp"

#include <troupe/collectives/hang_policy.hpp>

#include <functional>
#include <string>

namespace troupe::collectives {

/// The calls of an abort escalation; they return whether they succeeded. The first two may never return, so each runs
/// on a detached thread and must own what it uses.
struct escalation_calls {
  std::function<bool()> revoke;
  std::function<bool()> abort;
  /// Whether the hanging work has ended by itself. Does not block; polled while the exit permit is awaited.
  std::function<bool()> has_let_go;
};

enum class escalation_end : std::uint8_t {
  /// No kernel or copy writes any more.
  let_go,
  /// The same, and the group can be shrunk.
  revoked,
  /// This process is ending, or has been asked to end.
  ends_process,
};

/// The deadlines of an escalation under this policy.
[[nodiscard]] abort_escalation::deadlines limits_of(const hang_policy& policy);

/// Drives an escalation that has begun with `first` to its end; blocks until then. Requests the exit permit, copies the
/// state out and ends the process through `policy`. `who` begins the last message of a process that ends.
[[nodiscard]] escalation_end escalate(abort_escalation& escalation, abort_escalation::decision first,
                                      const hang_policy& policy, const std::string& who, const escalation_calls& calls);

} // namespace troupe::collectives
