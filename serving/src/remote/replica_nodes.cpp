#include "remote/replica_nodes.hpp"

#include <troupe/actors/decisions/node_labels.hpp>
#include <troupe/actors/decisions/resource_sums.hpp>

#include <fmt/format.h>

namespace troupe::serving {

namespace {

/// Why none is available.
std::string describe_none(std::span<const runtime::asked_node> nodes) {
  std::string result = "no node takes replicas";
  for (const auto& each : nodes)
    result += fmt::format("\n{}: {}", each.address,
                          each.report ? std::string{runtime::state_of(each)} : each.report.error().message);
  return result;
}

} // namespace

expected<std::vector<std::string>> nodes_for_replicas(std::span<const runtime::asked_node> nodes,
                                                      const replica_needs& needs) {
  std::vector<std::string> result;
  auto are_available = false;
  auto have_labels = false;
  for (const auto& each : nodes) {
    if (runtime::state_of(each) != "available")
      continue;
    are_available = true;
    if (!actors::has_labels(each.report->labels, needs.labels))
      continue;
    have_labels = true;
    if (actors::is_within(needs.each, each.report->offered))
      result.push_back(each.address);
  }
  if (!result.empty())
    return result;
  if (!are_available)
    return fail(errc::unsatisfiable, describe_none(nodes));
  if (!have_labels)
    return fail(errc::unsatisfiable, fmt::format("no node has the labels {}: start one with caf-node --label",
                                                 actors::describe(needs.labels)));
  return fail(errc::unsatisfiable, fmt::format("no node{} has what a replica leases: lease less for each, or add nodes",
                                               needs.labels.empty() ? "" : " with these labels"));
}

} // namespace troupe::serving
