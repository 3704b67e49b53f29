#include "mutation.hpp"

namespace troupe::simulation {

std::string_view to_string(mutation x) noexcept {
  switch (x) {
  case mutation::none:
    return "none";
  case mutation::passes_after_its_report:
    return "a rank passes after it has reported";
  case mutation::hears_stale_reports:
    return "stale reports are heard";
  case mutation::hears_stale_parts:
    return "stale parts of checkpoints are heard";
  case mutation::hears_stale_members:
    return "stale members find the new group";
  case mutation::decides_before_all_have_reported:
    return "the decision comes before all have reported";
  case mutation::drops_the_held_gradient:
    return "the held gradient is dropped";
  case mutation::passes_without_the_barrier:
    return "steps pass without the barrier";
  case mutation::lets_joiners_in_within_a_step:
    return "joiners come in within a step";
  case mutation::joiners_miss_commands:
    return "joiners miss commands";
  case mutation::keeps_the_old_ownership:
    return "the old ownership stays";
  case mutation::restarts_beside_survivors:
    return "the run starts again beside survivors";
  case mutation::goes_on_giving_after_a_loss:
    return "joiners are given what is reduced after a loss";
  case mutation::takes_a_lost_source_for_the_end:
    return "a joiner takes a lost source for the end";
  case mutation::takes_an_exception_for_a_loss:
    return "an exception is taken for a loss";
  case mutation::forgets_failures:
    return "failures are forgotten";
  case mutation::compares_no_plans:
    return "plans are not compared";
  case mutation::reports_the_drivers_build:
    return "a worker reports the build of the driver";
  case mutation::reports_the_state_of_others:
    return "a worker reports the final state of others";
  case mutation::ignores_shared_evaluations:
    return "shared evaluations are ignored";
  case mutation::tells_joiners_no_evaluations:
    return "joiners are not told of evaluations";
  case mutation::stays_in_a_completed_loop:
    return "a joiner stays in a completed loop";
  case mutation::stops_in_its_own_time:
    return "an immediate stop takes its time";
  case mutation::sets_no_start_deadline:
    return "there is no deadline for the start";
  case mutation::sets_no_grace_period:
    return "there is no grace period";
  case mutation::sets_no_hold_deadline:
    return "there is no deadline for too few workers";
  case mutation::takes_silence_for_death:
    return "a silent node counts as dead at once";
  case mutation::kills_silent_workers:
    return "a worker that does not run is killed at once";
  case mutation::forgets_answers:
    return "an answer that was lost is not given again";
  case mutation::adopts_into_the_old_generation:
    return "another driver goes on in the old generation";
  case mutation::keeps_its_journal_afterwards:
    return "the journal is written after the fact";
  case mutation::lets_all_go_unsaved:
    return "a failing run asks nobody to save its state";
  }
  return "?";
}

} // namespace troupe::simulation
