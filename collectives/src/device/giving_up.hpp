#pragma once

#include "device/abort_escalation.hpp"

#include <troupe/collectives/hang_policy.hpp>

#include <functional>
#include <string>

namespace troupe::collectives {

/// The calls of an abort escalation; they return whether they worked. The first two may never return, so each runs on a
/// thread of its own, which is then left behind; they must own what they use.
struct escalation_calls {
  std::function<bool()> revoke;
  std::function<bool()> abort;
  /// Whether the hanging work has ended by itself. Does not block; polled while the exit permit is awaited.
  std::function<bool()> has_let_go;
};

enum class escalation_end : std::uint8_t {
  /// Nothing writes any more.
  let_go,
  /// The same, and the group can be shrunk.
  revoked,
  /// This process is ending, or has been asked to end.
  ends_process,
};

/// The deadlines of an escalation under this policy.
[[nodiscard]] abort_escalation::deadlines limits_of(const hang_policy& policy);

/// Drives an escalation that has begun with `first` to its end, however long that takes. Requests the exit permit,
/// copies the state out and ends the process through `policy`. `who` starts the message of a process that ends.
[[nodiscard]] escalation_end escalate(abort_escalation& escalation, abort_escalation::decision first,
                                      const hang_policy& policy, const std::string& who, const escalation_calls& calls);

} // namespace troupe::collectives
