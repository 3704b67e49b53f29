#pragma once

#include "device/abort_escalation.hpp"

#include <troupe/collectives/hang_policy.hpp>

#include <functional>
#include <string>

namespace troupe::collectives {

/// What is tried on the way up an abort escalation. The first two may never come back: each is called on a thread of
/// its own, which is left behind then, so that they hold what they use. They return whether it worked.
struct escalation_calls {
  std::function<bool()> revoke;
  std::function<bool()> abort;
  /// Whether it has ended by itself; does not block. Looked at while leave is waited for.
  std::function<bool()> has_let_go;
};

enum class escalation_end : std::uint8_t {
  /// Nothing writes any more.
  let_go,
  /// The same, and the group may be shrunk.
  revoked,
  /// This process is ending, or was told to.
  ends_process,
};

/// The limits that a escalation has by this policy.
[[nodiscard]] abort_escalation::deadlines limits_of(const hang_policy& policy);

/// Drives a escalation that has begun with `first` to its end, however long that takes; asks for leave, copies out and
/// ends the process by `policy`. `who` begins the message of its end.
[[nodiscard]] escalation_end escalate(abort_escalation& escalation, abort_escalation::decision first,
                                      const hang_policy& policy, const std::string& who, const escalation_calls& calls);

} // namespace troupe::collectives
