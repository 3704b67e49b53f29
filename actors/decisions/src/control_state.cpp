#include <troupe/actors/decisions/control_state.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

bool is_member(const control_state& state, worker_id worker) {
  return std::ranges::any_of(state.members, [&](const formed_member& x) { return x.place.worker == worker; });
}

} // namespace

bool may_be_member(const control_state& kept, const worker_beat& of) {
  return is_member(kept, of.worker) || kept.generation < of.generation;
}

survivors sort_survivors(control_state kept, const std::map<std::uint32_t, std::vector<worker_beat>>& living) {
  survivors result{std::move(kept), {}};
  auto& members = result.state.members;
  const auto generation = result.state.generation;
  for (const auto& [node, beats] : living)
    for (const auto& beat : beats) {
      result.state.generation = std::max(result.state.generation, beat.generation);
      if (is_member(result.state, beat.worker))
        continue;
      const auto rank = rank_id{static_cast<std::uint32_t>(members.size() + result.others.size())};
      const auto place = worker_place{beat.worker, rank, node, 0, 1};
      if (generation < beat.generation)
        members.push_back({place, std::nullopt, 0});
      else
        result.others.push_back(place);
    }
  return result;
}

} // namespace troupe::actors
