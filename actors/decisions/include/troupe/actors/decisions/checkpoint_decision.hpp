#pragma once

#include <troupe/actors/decisions/worker_actions.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>

namespace troupe::actors {

/// A rank's inputs for the checkpoint decision between two steps. The step's barrier has made them equal on all ranks,
/// so that all decide alike.
struct checkpoint_boundary {
  /// After the last step, or when the run was asked to stop.
  bool last = false;
  /// `checkpoint_config::every_steps` says so.
  bool due = false;
  /// A user or the driver has requested a checkpoint after this step.
  bool asked = false;
  /// An earlier one was postponed, or overtaken by the end of its generation, on any rank.
  bool owed = false;
  /// All report from here to form the next generation.
  bool regroups = false;
  /// Whether `in_flight` and `owed` come from a barrier of this generation. A member that learned from the others that
  /// the step counts did not see that barrier's words.
  bool agreed = true;
  /// The most that any rank still writes, or waits for.
  std::uint64_t in_flight = 0;
  /// 0: training waits until each is durable.
  std::uint64_t max_in_flight = 1;
  /// Whether the checkpoint in flight replaces one that was overtaken.
  bool retrying = false;
  /// Whether a due checkpoint may be skipped because of those in flight.
  bool may_skip = true;
};

enum class checkpoint_decision : std::uint8_t {
  none,
  /// Copy the state, and continue.
  take,
  /// Take none, but wait for those in flight.
  wait,
  /// Wait for those in flight, copy the state, and continue.
  wait_and_take,
  /// Wait for those in flight, copy the state, and wait until it is durable.
  take_and_wait,
  /// At the next boundary where that is possible.
  postpone,
  /// The limit in flight is reached: skip this one, and count it.
  skip,
};

/// What to do about a checkpoint at a boundary. Pure.
[[nodiscard]] constexpr checkpoint_decision decide_checkpoint(const checkpoint_boundary& at) noexcept {
  if (at.last)
    return checkpoint_decision::take_and_wait;
  // Repeated regroups would overtake it every time.
  auto protects = at.regroups && at.retrying && at.in_flight > 0 && at.agreed;
  if (!at.due && !at.asked && !at.owed)
    return protects ? checkpoint_decision::wait : checkpoint_decision::none;
  // The others may have begun one here in the previous generation, and do not return to this step.
  if (!at.agreed)
    return checkpoint_decision::postpone;
  // The end of the generation would overtake it. Do not postpone a requested checkpoint: all members may be about to
  // leave.
  if (at.regroups)
    return at.asked   ? checkpoint_decision::take_and_wait
           : protects ? checkpoint_decision::wait
                      : checkpoint_decision::postpone;
  if (at.max_in_flight == 0)
    return checkpoint_decision::take_and_wait;
  if (at.in_flight < at.max_in_flight)
    return checkpoint_decision::take;
  // A later step has another state.
  if (at.due && !at.may_skip)
    return checkpoint_decision::wait_and_take;
  return at.asked || at.owed ? checkpoint_decision::postpone : checkpoint_decision::skip;
}

/// Tracks a rank's checkpoints from barrier to barrier, and decides at each boundary. A plain class.
class checkpoint_agreement {
 public:
  /// `every_steps` 0: none is due by itself. `max_in_flight` 0: training waits until each is durable.
  checkpoint_agreement(std::uint64_t every_steps, std::uint64_t max_in_flight, bool may_skip = true)
      : every_steps_(every_steps), max_in_flight_(max_in_flight), may_skip_(may_skip) {}

  /// A checkpoint was postponed, or overtaken by the end of its generation: it is taken at a later boundary.
  void owe() noexcept { owed_ = true; }
  [[nodiscard]] bool is_owed() const noexcept { return owed_; }
  /// A checkpoint has begun.
  void on_begun() noexcept { owed_ = false; }

  /// A barrier of this generation agreed on the most that any rank has in flight, and on whether any rank owes one.
  void on_barrier(generation_id generation, std::uint64_t in_flight, bool owed) noexcept {
    agreed_ = {generation, in_flight, owed};
  }

  /// What to do at the boundary after `step`.
  [[nodiscard]] checkpoint_decision decide(step_id step, const consider_checkpoint& what, generation_id now) {
    checkpoint_boundary at;
    at.last = what.is_last;
    at.due = what.is_due || is_due(step);
    at.asked = what.is_asked;
    at.regroups = what.regroups;
    at.max_in_flight = max_in_flight_;
    at.may_skip = may_skip_;
    at.agreed = agreed_.generation == now;
    at.in_flight = agreed_.in_flight;
    at.owed = at.agreed ? agreed_.owed : owed_;
    if (at.agreed) {
      // A request of this generation stays open until its checkpoint is known to be durable.
      const auto is_open = at.asked || (asked_in_ == now && (at.in_flight > 0 || at.owed));
      asked_in_ = is_open ? std::optional{now} : std::nullopt;
      at.asked = at.asked || (at.regroups && is_open);
    }
    at.retrying = retried_in_ == now;
    const auto decision = decide_checkpoint(at);
    if (decision == checkpoint_decision::take || decision == checkpoint_decision::wait_and_take)
      retried_in_ = at.owed ? std::optional{now} : std::nullopt;
    return decision;
  }

  /// This rank waited for the checkpoints in flight at the boundary after `step`, and took none.
  void on_waited(step_id step, bool was_overtaken) noexcept {
    owed_ = owed_ || is_due(step) || agreed_.owed || was_overtaken;
  }

 private:
  [[nodiscard]] bool is_due(step_id step) const noexcept { return every_steps_ > 0 && step.value % every_steps_ == 0; }

  struct agreed_words {
    generation_id generation;
    std::uint64_t in_flight = 0;
    bool owed = false;
  };

  std::uint64_t every_steps_;
  std::uint64_t max_in_flight_;
  bool may_skip_;
  bool owed_ = false;
  agreed_words agreed_;
  /// The generation in which one was asked for, until it is durable.
  std::optional<generation_id> asked_in_;
  /// The generation in which the last checkpoint replaced one that was overtaken.
  std::optional<generation_id> retried_in_;
};

} // namespace troupe::actors
