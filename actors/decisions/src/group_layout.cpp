#include <troupe/actors/decisions/group_layout.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace troupe::actors {

group_layout::group_layout(std::vector<worker_place> places, std::vector<std::string> addresses,
                           transport_kind transport)
    : places_(std::move(places)), addresses_(std::move(addresses)), transport_(transport) {
  std::set<std::uint32_t> used;
  for (const auto& place : places_)
    used.insert(place.node);
  used_nodes_.assign(used.begin(), used.end());
  for (const auto& place : places_)
    if (!ranks_of_nodes_.empty() && ranks_of_nodes_.back().node == place.node)
      ++ranks_of_nodes_.back().count;
    else
      ranks_of_nodes_.push_back({place.node, 1});
}

group_place group_layout::place_of(const worker_place& who) const {
  group_place result;
  result.rank = who.rank;
  result.world_size = world_size();
  result.local_rank = who.local_rank;
  result.local_world_size = who.local_world_size;
  result.node_rank = node_rank_of(who);
  result.transport = transport_;
  result.nodes = ranks_of_nodes_;
  result.data_address = used_nodes_.size() > 1 ? addresses_[who.node] : "127.0.0.1";
  result.host_address = addresses_[who.node];
  return result;
}

bool group_layout::is_launch_variable(std::string_view name) noexcept {
  static constexpr std::array<std::string_view, 7> names{
      "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", debugger_variable};
  return std::ranges::find(names, name) != names.end();
}

std::map<std::string, std::string> group_layout::environment_of(const worker_place& who) const {
  std::map<std::string, std::string> result{{"RANK", fmt::to_string(who.rank.value)},
                                            {"WORLD_SIZE", fmt::to_string(world_size())},
                                            {"LOCAL_RANK", fmt::to_string(who.local_rank)},
                                            {"LOCAL_WORLD_SIZE", fmt::to_string(who.local_world_size)},
                                            {"GROUP_RANK", fmt::to_string(node_rank_of(who))}};
  // Not for joiners: their layout has only themselves.
  if (!places_.empty() && places_.front().rank == rank_id{})
    result["MASTER_ADDR"] = used_nodes_.size() > 1 ? addresses_[places_.front().node] : "127.0.0.1";
  return result;
}

std::uint32_t group_layout::node_rank_of(const worker_place& who) const {
  return static_cast<std::uint32_t>(std::ranges::find(used_nodes_, who.node) - used_nodes_.begin());
}

} // namespace troupe::actors
