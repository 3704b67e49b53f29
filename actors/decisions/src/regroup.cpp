#include <troupe/actors/decisions/regroup.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

namespace {

std::string name_of(const regroup_report& x) {
  return fmt::format("worker {}", x.worker);
}

bool holds_gradient(const regroup_report& x) {
  const auto* step = std::get_if<worker_position::in_step>(&x.position);
  return step != nullptr && step->holds_gradient;
}

} // namespace

expected<regroup_decision> decide_regroup(std::span<const regroup_report> reports) {
  if (reports.empty() || std::ranges::any_of(reports, &regroup_report::is<worker_position::without_state>))
    return fail(errc::internal, "a decision about the next generation needs the reports of workers with the state");
  const auto& first =
      *std::ranges::max_element(reports, {}, [](const regroup_report& x) { return x.progress()->committed; });
  const auto& last_evaluated =
      *std::ranges::max_element(reports, {}, [](const regroup_report& x) { return x.progress()->evaluations; });
  regroup_decision result;
  result.commit_point = first.progress()->committed;
  result.commands_agreed = first.progress()->commands_agreed;
  result.evaluations = last_evaluated.progress()->evaluations;
  const regroup_report* behind = nullptr;
  for (const auto& x : reports) {
    const auto [committed, commands_agreed, evaluations] = *x.progress();
    if (committed != result.commit_point) {
      if (committed.value + 1 != result.commit_point.value || !holds_gradient(x))
        return fail(errc::internal,
                    fmt::format("{} has committed step {}, and {} is at step {} without the gradient of the next: an "
                                "invariant of Troupe is broken",
                                name_of(first), result.commit_point, name_of(x), committed));
      behind = &x;
    }
    if (evaluations + 1 < result.evaluations)
      return fail(
          errc::internal,
          fmt::format("{} has finished {} evaluations, and {} has finished {}: an invariant of Troupe is broken",
                      name_of(last_evaluated), result.evaluations, name_of(x), evaluations));
    if (evaluations != result.evaluations)
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
