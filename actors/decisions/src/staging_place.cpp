#include <troupe/actors/decisions/staging_place.hpp>

#include <utility>

namespace troupe::actors {

staging_place place_in_staging_group(std::uint64_t number, const stage_command& command,
                                     std::vector<node_ranks> members, rank_id rank, const std::string& host_address) {
  staging_place result;
  result.number = number;
  result.generation = command.generation;
  result.rank = rank;
  for (const auto& each : members)
    result.sources += each.count;
  result.joiners = static_cast<std::uint32_t>(command.joiner_nodes.size());
  result.transport = command.transport;
  result.nodes = std::move(members);
  for (auto node : command.joiner_nodes)
    result.nodes.push_back({node, 1});
  result.data_address = result.is_on_one_node() ? "127.0.0.1" : host_address;
  return result;
}

} // namespace troupe::actors
