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
  /// All members are between two steps: joiners can join, and members can leave.
  boundary,
  /// At least one member is within a step.
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

/// The reports of all active workers; nothing if one of them has not reported, or none is active.
[[nodiscard]] std::optional<collected_reports> collect_reports(worker_table& workers);

/// Decides which members stay. Leaving members are released if they can leave now and another member with the state
/// stays. Members without the state that cannot get it now wait for a place again, or are released if they leave. Adds
/// the ids of released members to `released`.
[[nodiscard]] std::vector<worker_record*> choose_staying(const collected_reports& reports,
                                                         std::vector<worker_id>& released);

/// Makes these workers, members and joiners, active members of the next generation, and gives them their places.
/// Completes `next` but for its record.
void seat_members(const std::vector<worker_record*>& members, step_id commit_point, form_generation& next);

/// Describes the interrupted step from the reports, for the record of the generation.
[[nodiscard]] generation_record describe_interruption(const collected_reports& reports, step_id commit_point);

} // namespace troupe::actors
