#pragma once

#include <cstdint>

namespace troupe::runtime {

/// What a rank knows between two steps about the checkpoint that might be taken there. What differs between ranks has
/// been made the same by the step's barrier, so that all decide alike.
struct checkpoint_boundary {
  /// After the last step, or when the run was asked to stop.
  bool last = false;
  /// `checkpoint_config::every_steps` says so.
  bool due = false;
  /// Somebody has asked for one after this step.
  bool asked = false;
  /// An earlier one was postponed, or overtaken by the end of its generation, on any rank.
  bool owed = false;
  /// All report from here to form the next generation.
  bool regroups = false;
  /// Whether `in_flight` and `owed` are those of this generation's barrier: who was told by others that the step counts
  /// did not leave it together with them.
  bool agreed = true;
  /// The most that any rank still writes, or waits for.
  std::uint64_t in_flight = 0;
  /// 0: training waits until each is durable.
  std::uint64_t max_in_flight = 1;
  /// Whether what is in flight takes the place of one that was overtaken.
  bool retrying = false;
};

enum class checkpoint_decision : std::uint8_t {
  none,
  /// Copy the state, and go on.
  take,
  /// Take none, but wait for those in flight.
  wait,
  /// Wait for those in flight, copy the state, and wait until it is durable.
  take_and_wait,
  /// At the next boundary where that is possible.
  postpone,
  /// As many as may be are in flight: this one is left out, and counted.
  skip,
};

/// What to do about a checkpoint at a boundary. Pure.
[[nodiscard]] constexpr checkpoint_decision decide_checkpoint(const checkpoint_boundary& at) noexcept {
  if (at.last)
    return checkpoint_decision::take_and_wait;
  // Members that come and go would overtake it again and again.
  auto protects = at.regroups && at.retrying && at.in_flight > 0 && at.agreed;
  if (!at.due && !at.asked && !at.owed)
    return protects ? checkpoint_decision::wait : checkpoint_decision::none;
  // The others may have begun one here in a generation that is over, and do not come back to this step.
  if (!at.agreed)
    return checkpoint_decision::postpone;
  // The end of the generation would overtake it. What somebody has asked for is not put off: all may be about to leave.
  if (at.regroups)
    return at.asked   ? checkpoint_decision::take_and_wait
           : protects ? checkpoint_decision::wait
                      : checkpoint_decision::postpone;
  if (at.max_in_flight == 0)
    return checkpoint_decision::take_and_wait;
  if (at.in_flight < at.max_in_flight)
    return checkpoint_decision::take;
  return at.asked || at.owed ? checkpoint_decision::postpone : checkpoint_decision::skip;
}

} // namespace troupe::runtime
