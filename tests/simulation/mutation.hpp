#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe::simulation {

/// One thing that the shell around the product's decisions does wrong. The checker must find each.
enum class mutation : std::uint8_t {
  none,
  /// An abort takes down what the worker has reached, but does not freeze its word: a rank passes after it has
  /// reported.
  passes_after_its_report,
  /// A report of an old generation counts as one of the present.
  hears_stale_reports,
  /// A part of a checkpoint of an old generation counts.
  hears_stale_parts,
  /// A worker that was given up may find its peers in the new generation.
  hears_stale_members,
  /// Somebody's report is made up of what was last known of him, before he has reported.
  decides_before_all_have_reported,
  /// Who has not committed the commit_point step computes it again, although it holds its gradient.
  drops_the_held_gradient,
  /// A step counts as applied once its gradient is here: nobody waits for the others.
  passes_without_the_barrier,
  /// Joiners are let in where somebody has a step to apply.
  lets_joiners_in_within_a_step,
  /// A joiner is not told what was commanded before it came.
  joiners_miss_commands,
  /// The shards are divided as in the generation before.
  keeps_the_old_ownership,
  /// The run starts again from a checkpoint although somebody has the state.
  restarts_beside_survivors,
  /// Who gives joiners what is reduced does so in the next generation, too.
  goes_on_giving_after_a_loss,
  /// A joiner that is not told any more what the others do takes itself for one of them.
  takes_a_lost_source_for_the_end,
  /// What the training function throws is told as the loss of its group.
  takes_an_exception_for_a_loss,
  /// However many failures there are, they are allowed.
  forgets_failures,
  /// All plans are passed on with the data of the same fingerprint.
  compares_no_plans,
  /// A process says that it is of the build that it is asked for.
  reports_the_drivers_build,
  /// A process reports the final state that others have.
  reports_the_state_of_others,
  /// A rank does not take the result of an evaluation that it has missed.
  ignores_shared_evaluations,
  /// Joiners are not told what was evaluated before they came.
  tells_joiners_no_evaluations,
  /// A joiner that is told to skip a loop asks for a place in it again.
  stays_in_a_completed_loop,
  /// An immediate stop is taken for an ordinary one.
  stops_in_its_own_time,
  /// Nobody reminds the driver that not all have joined.
  sets_no_start_deadline,
  /// Nobody reminds the driver of what is left of a failing run.
  sets_no_grace_period,
  /// Nobody reminds the driver that there have been too few workers for long.
  sets_no_hold_deadline,
  /// A silent node's workers count as lost at once, whoever else has the state.
  takes_silence_for_death,
  /// A worker that does not run is killed at once, whoever else has the state.
  kills_silent_workers,
  /// What was answered over a lost connection is refused when it is asked again.
  forgets_answers,
  /// Another driver goes on in the generation that the journal has.
  adopts_into_the_old_generation,
  /// Workers hear of what is decided before it is in the journal.
  keeps_its_journal_afterwards,
  /// Nobody is asked to save the state of a run that fails.
  lets_all_go_unsaved,
};

inline constexpr std::array mutations{
    mutation::passes_after_its_report,
    mutation::hears_stale_reports,
    mutation::hears_stale_parts,
    mutation::hears_stale_members,
    mutation::decides_before_all_have_reported,
    mutation::drops_the_held_gradient,
    mutation::passes_without_the_barrier,
    mutation::lets_joiners_in_within_a_step,
    mutation::joiners_miss_commands,
    mutation::keeps_the_old_ownership,
    mutation::restarts_beside_survivors,
    mutation::goes_on_giving_after_a_loss,
    mutation::takes_a_lost_source_for_the_end,
    mutation::takes_an_exception_for_a_loss,
    mutation::forgets_failures,
    mutation::compares_no_plans,
    mutation::reports_the_drivers_build,
    mutation::reports_the_state_of_others,
    mutation::ignores_shared_evaluations,
    mutation::tells_joiners_no_evaluations,
    mutation::stays_in_a_completed_loop,
    mutation::stops_in_its_own_time,
    mutation::sets_no_start_deadline,
    mutation::sets_no_grace_period,
    mutation::sets_no_hold_deadline,
    mutation::takes_silence_for_death,
    mutation::kills_silent_workers,
    mutation::forgets_answers,
    mutation::adopts_into_the_old_generation,
    mutation::keeps_its_journal_afterwards,
    mutation::lets_all_go_unsaved,
};

std::string_view to_string(mutation x) noexcept;

} // namespace troupe::simulation
