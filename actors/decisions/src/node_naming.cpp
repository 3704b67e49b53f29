#include <troupe/actors/decisions/node_naming.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

/// An answer may be old, or that of one server among several.
constexpr unsigned most_absences = 3;

} // namespace

node_naming::change node_naming::take(const expected<std::vector<named_node>>& answer) {
  change result;
  if (!answer || answer->empty()) {
    const auto is_first = problem_.empty();
    problem_ = answer ? "no node is named" : answer.error().message;
    if (knows_nodes_ && is_first)
      result.notices.push_back(fmt::format(
          "it cannot be learnt which nodes there are: the run goes on with those that it knows ({})", problem_));
    return result;
  }
  if (knows_nodes_ && !problem_.empty())
    result.notices.emplace_back("it is known again which nodes there are");
  problem_.clear();
  knows_nodes_ = true;
  result.named = *answer;
  for (auto& [address, times] : absent_)
    if (std::ranges::find(*answer, address, &named_node::address) == answer->end() && !kept_.contains(address) &&
        ++times >= most_absences)
      result.left.push_back(address);
  for (const auto& each : *answer) {
    absent_[each.address] = 0;
    kept_.erase(each.address);
  }
  return result;
}

void node_naming::keep_none() {
  for (const auto& each : kept_)
    absent_.try_emplace(each, 0U);
  kept_.clear();
}

} // namespace troupe::actors
