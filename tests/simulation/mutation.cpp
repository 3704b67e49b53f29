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
  }
  return "?";
}

} // namespace troupe::simulation
