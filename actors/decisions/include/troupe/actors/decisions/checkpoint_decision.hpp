#pragma once

#include <troupe/actors/decisions/worker_actions.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>

namespace troupe::actors {

/// Whether one is due at a boundary by `checkpoint_config::every_steps`, or because a custom loop saves there.
enum class checkpoint_due : std::uint8_t {
  no,
  /// It may be left out because of those in flight.
  may_be_skipped,
  /// It is taken in its own step.
  in_this_step,
};

/// What a barrier of this generation has made the same on all ranks.
struct agreed_checkpoints {
  /// The most that any rank still writes, or waits for.
  std::uint64_t in_flight = 0;
  /// An earlier one was postponed, or overtaken by the end of its generation, on any rank.
  bool owed = false;
  /// Whether what is in flight takes the place of one that was overtaken.
  bool retrying = false;
};

/// What a rank knows between two steps, but the last, about the checkpoint that might be taken there. What differs
/// between ranks has been made the same by the step's barrier, so that all decide alike.
struct checkpoint_boundary {
  checkpoint_due due = checkpoint_due::no;
  /// Somebody has asked for one after this step.
  bool asked = false;
  /// All report from here to form the next generation.
  bool regroups = false;
  /// Nothing for a member that learned from the others that the step counts: it did not see the barrier's words.
  std::optional<agreed_checkpoints> agreed;
  /// 0: training waits until each is durable.
  std::uint64_t max_in_flight = 1;
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

/// What to do about a checkpoint at a boundary that is not the last. Pure.
[[nodiscard]] constexpr checkpoint_decision decide_checkpoint(const checkpoint_boundary& at) noexcept {
  const auto is_wanted = at.due != checkpoint_due::no || at.asked;
  // The others may have begun one here in a generation that is over, and do not come back to this step.
  if (!at.agreed)
    return is_wanted ? checkpoint_decision::postpone : checkpoint_decision::none;
  // Members that come and go would overtake it again and again.
  const auto protects = at.regroups && at.agreed->retrying && at.agreed->in_flight > 0;
  if (!is_wanted && !at.agreed->owed)
    return protects ? checkpoint_decision::wait : checkpoint_decision::none;
  // The end of the generation would overtake it. What somebody has asked for is not put off: all may be about to leave.
  if (at.regroups)
    return at.asked   ? checkpoint_decision::take_and_wait
           : protects ? checkpoint_decision::wait
                      : checkpoint_decision::postpone;
  if (at.max_in_flight == 0)
    return checkpoint_decision::take_and_wait;
  if (at.agreed->in_flight < at.max_in_flight)
    return checkpoint_decision::take;
  // At a later step the state would be another one.
  if (at.due == checkpoint_due::in_this_step)
    return checkpoint_decision::wait_and_take;
  return at.asked || at.agreed->owed ? checkpoint_decision::postpone : checkpoint_decision::skip;
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
    agreed_ = agreed_words{generation, in_flight, owed};
  }

  /// What to do at the boundary after `step`.
  [[nodiscard]] checkpoint_decision decide(step_id step, const consider_checkpoint& what, generation_id now) {
    checkpoint_boundary at;
    if (what.is_due || is_due(step))
      at.due = may_skip_ ? checkpoint_due::may_be_skipped : checkpoint_due::in_this_step;
    at.asked = what.is_asked;
    at.regroups = what.regroups;
    at.max_in_flight = max_in_flight_;
    if (agreed_ && agreed_->generation == now) {
      at.agreed = agreed_checkpoints{agreed_->in_flight, agreed_->owed, retried_in_ == now};
      // What was asked for in this generation, and is not known to be durable.
      const auto is_open = at.asked || (asked_in_ == now && (agreed_->in_flight > 0 || agreed_->owed));
      asked_in_ = is_open ? std::optional{now} : std::nullopt;
      at.asked = at.asked || (at.regroups && is_open);
    }
    // Nothing comes after the last.
    if (what.is_last)
      return checkpoint_decision::take_and_wait;
    const auto decision = decide_checkpoint(at);
    if (decision == checkpoint_decision::take || decision == checkpoint_decision::wait_and_take)
      retried_in_ = at.agreed->owed ? std::optional{now} : std::nullopt;
    return decision;
  }

  /// This rank waited for the checkpoints in flight at the boundary after `step`, and took none.
  void on_waited(step_id step, bool was_overtaken) noexcept {
    owed_ = owed_ || is_due(step) || (agreed_ && agreed_->owed) || was_overtaken;
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
  /// By the last barrier.
  std::optional<agreed_words> agreed_;
  /// The generation in which one was asked for, until it is durable.
  std::optional<generation_id> asked_in_;
  /// The generation in which the last checkpoint replaced one that was overtaken.
  std::optional<generation_id> retried_in_;
};

} // namespace troupe::actors
