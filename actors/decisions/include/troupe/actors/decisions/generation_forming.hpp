#pragma once

#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/messages/regroup.hpp>

#include <optional>
#include <vector>

/// How the next generation is made of the reports of the last.
namespace troupe::actors {

/// Where the members with the state are.
enum class report_point : std::uint8_t {
  /// All of them stand between two steps: joiners can come in, and members can leave.
  boundary,
  /// Somebody is in the middle of a step.
  in_step,
};

/// What all active workers have reported.
struct collected_reports {
  /// By id. There is at least one.
  std::vector<worker_record*> members;
  /// Of those that have the state.
  std::vector<regroup_report> with_state;
  report_point point = report_point::boundary;
};

/// The reports of all active workers; nothing if one of them has not reported, or nobody is active.
[[nodiscard]] std::optional<collected_reports> collect_reports(worker_table& workers);

/// Decides which members stay. Those that leave are released where they can leave and somebody stays who has the state.
/// Those without the state that cannot get it now wait for a place again, or are released if they leave. `released`
/// gets the ids of all that are released.
[[nodiscard]] std::vector<worker_record*> choose_staying(const collected_reports& reports,
                                                         std::vector<worker_id>& released);

/// Makes these workers, members and joiners, active members of the next generation, and gives them their places.
/// Completes `next` but for its record.
void seat_members(const std::vector<worker_record*>& members, step_id commit_point, form_generation& next);

/// What the reports say about the step that was under way, for the record of the generation.
[[nodiscard]] generation_record describe_interruption(const collected_reports& reports, step_id commit_point);

} // namespace troupe::actors
