#include <troupe/actors/decisions/regroup.hpp>

#include <algorithm>

namespace troupe::actors {

namespace {

std::string name_of(const regroup_report& x) {
  return "worker " + std::to_string(x.worker.value);
}

std::string text(std::uint64_t x) {
  return std::to_string(x);
}

} // namespace

expected<regroup_decision> decide_regroup(std::span<const regroup_report> reports) {
  if (reports.empty())
    return fail(errc::internal, "nobody is left to decide about");
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
        return fail(errc::internal, name_of(first) + " has committed step " + text(first.committed.value) + ", and " +
                                        name_of(x) + " is at step " + text(x.committed.value) +
                                        " without the gradient of the next: an invariant of Troupe is broken");
      behind = &x;
    }
    if (x.evaluations + 1 < result.evaluations)
      return fail(errc::internal, name_of(last_evaluated) + " has finished " + text(result.evaluations) +
                                      " evaluations, and " + name_of(x) + " " + text(x.evaluations) +
                                      ": an invariant of Troupe is broken");
    if (x.evaluations != result.evaluations)
      result.evaluation_source = last_evaluated.worker;
  }
  result.reason = behind != nullptr ? name_of(first) + " has committed step " + text(result.commit_point.value) +
                                          ": all apply it, from the gradient that they hold"
                                    : "nobody has committed step " + text(result.commit_point.value + 1) +
                                          ": all compute it, under the new ownership";
  return result;
}

} // namespace troupe::actors
