#pragma once

#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/config/run.hpp>
#include <troupe/messages/staging.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::actors {

/// How joiners get the state while the members train on: in a staging group beside the generation. There is one at a
/// time.
class staging_groups {
 public:
  /// How often a joiner is given the state so, before the members wait for it.
  static constexpr std::uint32_t most_tries = 3;

  /// Puts the waiting `joiners` into a new group with all active workers of `generation`, which is in the training
  /// function's loop `loop`. `number` is the number of the command to the members. Uses another transport where `mode`
  /// is impossible.
  [[nodiscard]] stage_joiners open(generation_id generation, std::uint32_t loop, std::uint64_t number,
                                   transport_mode mode, const worker_table& workers,
                                   const std::vector<worker_record*>& joiners);

  [[nodiscard]] bool is_open(const worker_table& workers) const;
  /// Whether this is the number of the last group.
  [[nodiscard]] bool is_current(std::uint64_t number) const noexcept { return last_ && last_->number == number; }

  /// A follower has caught up. Returns all followers if none of them is behind; else nothing.
  [[nodiscard]] std::vector<worker_record*> on_caught_up(worker_table& workers, worker_record& who, step_id step);

  /// The answer to a follower that reports although it was answered before.
  [[nodiscard]] run_actions answer_again(const worker_record& who) const;

  /// A worker that stood here has left its group: the group's other members find it broken, and report again. Nothing
  /// if the worker was in no group.
  [[nodiscard]] run_actions leave(const worker_record& who, const worker_standing& before) const;

  /// The members go on without the followers that have said to be caught up.
  static void stop_waiting(worker_table& workers);

 private:
  std::optional<stage_joiners> last_;
};

} // namespace troupe::actors
