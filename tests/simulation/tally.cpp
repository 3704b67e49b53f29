#include "tally.hpp"

namespace troupe::simulation {

std::string_view to_string(branch x) noexcept {
  switch (x) {
  case branch::fault:
    return "faults";
  case branch::regroup:
    return "generations formed anew";
  case branch::all_apply_what_one_has_passed:
    return "a step applied by all because one had committed it";
  case branch::step_computed_again:
    return "a step computed again";
  case branch::joiners_let_in:
    return "joiners let in";
  case branch::joiner_put_off:
    return "a joiner put off, because somebody was in the middle of a step";
  case branch::joiners_staged:
    return "joiners given the state while the others trained";
  case branch::follower_let_in:
    return "one that followed the others let in";
  case branch::staging_given_up:
    return "a staging group given up, because a joiner was lost";
  case branch::staging_broken:
    return "a joiner that followed fell back";
  case branch::leaving_worker_released:
    return "leaving workers released";
  case branch::all_left_with_their_nodes:
    return "all left with their nodes, behind a checkpoint";
  case branch::held_for_workers:
    return "held for want of workers";
  case branch::held_by_a_pause:
    return "held by a pause";
  case branch::held_for_silent_nodes:
    return "held because nobody who has the state could be reached";
  case branch::held_for_silent_workers:
    return "held because nobody who has the state runs";
  case branch::silent_node_answered:
    return "a silent node answered in time";
  case branch::silent_worker_answered:
    return "a worker that did not run answered in time";
  case branch::driver_killed:
    return "the driver is killed";
  case branch::taken_over:
    return "another driver takes the run over";
  case branch::taken_over_in_part:
    return "another driver takes the run over, and not all nodes answer";
  case branch::connected_again:
    return "a node's connection was made again";
  case branch::report_answered_again:
    return "a report that was answered was sent again";
  case branch::side_left_behind:
    return "a side of a cut data network left behind";
  case branch::silent_for_too_long:
    return "nodes or workers that alone had the state were given up in the end";
  case branch::restart_from_checkpoint:
    return "started again from a checkpoint";
  case branch::restart_without_checkpoint:
    return "started again from the beginning";
  case branch::stale_report_refused:
    return "a stale report refused";
  case branch::report_repeated:
    return "a report repeated";
  case branch::stale_exchange_refused:
    return "a stale exchange refused";
  case branch::stale_part_refused:
    return "a stale part of a checkpoint refused";
  case branch::checkpoint_taken_again:
    return "parts of an abandoned checkpoint sent back";
  case branch::lost_while_forming:
    return "a worker lost while a generation formed";
  case branch::lost_while_reporting:
    return "a worker lost while it reported";
  case branch::lost_while_transferring:
    return "a worker lost while state moved";
  case branch::lost_while_following:
    return "a joiner lost while it followed";
  case branch::lost_while_saving:
    return "a worker lost while a checkpoint was taken";
  case branch::found_by_workers:
    return "a loss told by a worker first";
  case branch::down_to_one:
    return "a generation of one";
  case branch::fenced_worker_spoke:
    return "a report of a worker that was given up";
  case branch::fenced_node_readmitted:
    return "a node that was given up came back";
  case branch::stopped:
    return "stopped on request";
  case branch::exception_survived:
    return "an exception survived";
  case branch::ended_by_exception:
    return "a run ended by an exception that came again";
  case branch::process_refused:
    return "a process of another build or host refused";
  case branch::plans_refused:
    return "plans refused";
  case branch::too_many_failures:
    return "a run ended by one failure too many";
  case branch::joiners_given_up:
    return "no more joiners started, because too many ended";
  case branch::joiner_overdue:
    return "a joiner given up, because it took too long";
  case branch::started_late:
    return "a start that took too long";
  case branch::held_too_long:
    return "a run ended for want of workers";
  case branch::hang_found:
    return "a generation ended because no rank moved";
  case branch::evaluation_shared:
    return "the result of an evaluation given to those that missed it";
  case branch::evaluation_known:
    return "an evaluation told to a joiner";
  case branch::loop_skipped:
    return "a loop skipped by a joiner";
  case branch::results_differ:
    return "replicas that differ at the end";
  case branch::stopped_at_once:
    return "stopped at once";
  case branch::stopped_before_the_start:
    return "stopped before training began";
  case branch::stopped_before_a_later_loop:
    return "stopped in a loop that was not the last";
  case branch::failing_in_grace:
    return "the end of a failing run not waited for";
  case branch::saved_at_the_end:
    return "the state of a failing run saved";
  case branch::spoken_after_the_end:
    return "something said after the end";
  case branch::end:
    break;
  }
  return "?";
}

} // namespace troupe::simulation
