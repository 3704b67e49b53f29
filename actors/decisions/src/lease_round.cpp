#include <troupe/actors/decisions/lease_round.hpp>

#include <troupe/actors/decisions/resource_sums.hpp>

#include <utility>

namespace troupe::actors {

std::map<std::uint32_t, resources> amounts_on_nodes(const resources& each, std::span<const worker_place> places) {
  std::map<std::uint32_t, std::uint32_t> workers;
  for (const auto& place : places)
    ++workers[place.node];
  std::map<std::uint32_t, resources> result;
  for (const auto& [node, count] : workers)
    result.emplace(node, resources_of(each, count));
  return result;
}

void lease_round::on_answer(std::uint32_t node, expected<void> answer) {
  if (answered_.insert(node).second && !answer && !refusal_)
    refusal_ = std::move(answer.error());
}

} // namespace troupe::actors
