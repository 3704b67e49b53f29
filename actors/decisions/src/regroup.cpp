#include <troupe/actors/decisions/regroup.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

namespace {

std::string name_of(const regroup_report& x) {
  return fmt::format("worker {}", x.worker);
}

} // namespace

expected<regroup_decision> decide_regroup(std::span<const regroup_report> reports) {
  if (reports.empty())
    return fail(errc::internal, "there is no report to decide about");
  const auto& first = *std::ranges::max_element(reports, {}, &regroup_report::committed);
  const auto& last_evaluated = *std::ranges::max_element(reports, {}, &regroup_report::evaluations);
  regroup_decision result;
  result.commit_point = first.committed;
  result.commands_agreed = first.commands_agreed;
  result.evaluations = last_evaluated.evaluations;
  const regroup_report* behind = nullptr;
  for (const auto& x : reports) {
    if (x.committed != result.commit_point) {
      if (x.committed.value + 1 != result.commit_point.value || !x.holds_next)
        return fail(errc::internal,
                    fmt::format("{} has committed step {}, and {} is at step {} without the gradient of the next: an "
                                "invariant of Troupe is broken",
                                name_of(first), first.committed, name_of(x), x.committed));
      behind = &x;
    }
    if (x.evaluations + 1 < result.evaluations)
      return fail(
          errc::internal,
          fmt::format("{} has finished {} evaluations, and {} has finished {}: an invariant of Troupe is broken",
                      name_of(last_evaluated), result.evaluations, name_of(x), x.evaluations));
    if (x.evaluations != result.evaluations)
      result.evaluation_source = last_evaluated.worker;
  }
  result.reason = behind != nullptr
                      ? fmt::format("{} has committed step {}: all apply it, from the gradient that they hold",
                                    name_of(first), result.commit_point)
                      : fmt::format("nobody has committed step {}: all compute it, under the new ownership",
                                    result.commit_point.value + 1);
  return result;
}

} // namespace troupe::actors
