#include "remote/replica_nodes.hpp"

#include <troupe/runtime/members.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace troupe::serving {

namespace {

bool has_labels(const cluster_member& node, const std::map<std::string, std::string>& wanted) {
  return std::ranges::all_of(wanted, [&node](const auto& each) {
    const auto found = node.labels.find(each.first);
    return found != node.labels.end() && found->second == each.second;
  });
}

bool has_capacity(const cluster_member& node, const resources& wanted) {
  const auto& offered = node.offered;
  return wanted.cpus <= offered.cpus && wanted.gpus <= offered.gpus && wanted.memory_bytes <= offered.memory_bytes &&
         std::ranges::all_of(wanted.custom, [&offered](const auto& each) {
           const auto found = offered.custom.find(each.first);
           return found != offered.custom.end() && each.second <= found->second;
         });
}

} // namespace

expected<std::vector<std::string>> nodes_for_replicas(std::span<const listed_member> members,
                                                      const replica_needs& needs) {
  std::vector<std::string> result;
  auto are_available = false;
  auto have_labels = false;
  for (const auto& each : members) {
    if (runtime::state_of(each) != "available")
      continue;
    are_available = true;
    if (!has_labels(each.what, needs.labels))
      continue;
    have_labels = true;
    if (has_capacity(each.what, needs.each))
      result.push_back(each.what.address);
  }
  if (!result.empty())
    return result;
  if (!are_available)
    return fail(errc::unsatisfiable, "the cluster has no node that takes replicas");
  if (!have_labels) {
    std::vector<std::string> labels;
    for (const auto& [name, value] : needs.labels)
      labels.push_back(fmt::format("{}={}", name, value));
    return fail(errc::unsatisfiable, fmt::format("no node of the cluster has the labels {}: start one with "
                                                 "caf-node --label",
                                                 fmt::join(labels, ", ")));
  }
  return fail(errc::unsatisfiable,
              fmt::format("no node of the cluster{} has what a replica leases: lease less for each, or add nodes",
                          needs.labels.empty() ? "" : " with these labels"));
}

} // namespace troupe::serving
