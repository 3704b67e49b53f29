#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::simulation {

/// What the schedules have gone through.
enum class branch : std::uint8_t {
  fault,
  regroup,
  all_apply_what_one_has_passed,
  step_computed_again,
  joiners_let_in,
  joiner_put_off,
  joiners_staged,
  follower_let_in,
  staging_given_up,
  staging_broken,
  leaving_worker_released,
  all_left_with_their_nodes,
  held_for_workers,
  held_by_a_pause,
  held_for_silent_nodes,
  held_for_silent_workers,
  silent_node_answered,
  silent_worker_answered,
  connected_again,
  driver_killed,
  taken_over,
  taken_over_in_part,
  report_answered_again,
  silent_for_too_long,
  side_left_behind,
  restart_from_checkpoint,
  restart_without_checkpoint,
  stale_report_refused,
  report_repeated,
  stale_exchange_refused,
  stale_part_refused,
  checkpoint_taken_again,
  lost_while_forming,
  lost_while_reporting,
  lost_while_transferring,
  lost_while_following,
  lost_while_saving,
  found_by_workers,
  down_to_one,
  fenced_worker_spoke,
  fenced_node_readmitted,
  stopped,
  exception_survived,
  ended_by_exception,
  process_refused,
  plans_refused,
  too_many_failures,
  joiners_given_up,
  joiner_overdue,
  started_late,
  held_too_long,
  hang_found,
  evaluation_shared,
  evaluation_known,
  loop_skipped,
  results_differ,
  stopped_at_once,
  stopped_before_the_start,
  stopped_before_a_later_loop,
  failing_in_grace,
  saved_at_the_end,
  spoken_after_the_end,
  /// How many there are.
  end,
};

class tally {
 public:
  static constexpr auto size = static_cast<std::size_t>(branch::end);

  void count(branch what, std::uint64_t times = 1) noexcept { counts_[static_cast<std::size_t>(what)] += times; }
  [[nodiscard]] std::uint64_t of(branch what) const noexcept { return counts_[static_cast<std::size_t>(what)]; }

  void add(const tally& other) noexcept {
    for (std::size_t i = 0; i < counts_.size(); ++i)
      counts_[i] += other.counts_[i];
  }

 private:
  std::array<std::uint64_t, size> counts_{};
};

std::string_view to_string(branch x) noexcept;

} // namespace troupe::simulation
