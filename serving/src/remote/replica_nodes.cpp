#include "remote/replica_nodes.hpp"

#include <troupe/actors/decisions/node_labels.hpp>
#include <troupe/actors/decisions/resource_sums.hpp>
#include <troupe/runtime/members.hpp>

#include <fmt/format.h>

namespace troupe::serving {

expected<std::vector<std::string>> nodes_for_replicas(std::span<const listed_member> members,
                                                      const replica_needs& needs) {
  std::vector<std::string> result;
  auto are_available = false;
  auto have_labels = false;
  for (const auto& each : members) {
    if (runtime::state_of(each) != "available")
      continue;
    are_available = true;
    if (!actors::has_labels(each.what.labels, needs.labels))
      continue;
    have_labels = true;
    if (actors::is_within(needs.each, each.what.offered))
      result.push_back(each.what.address);
  }
  if (!result.empty())
    return result;
  if (!are_available)
    return fail(errc::unsatisfiable, "the cluster has no node that takes replicas");
  if (!have_labels)
    return fail(errc::unsatisfiable,
                fmt::format("no node of the cluster has the labels {}: start one with caf-node --label",
                            actors::describe(needs.labels)));
  return fail(errc::unsatisfiable,
              fmt::format("no node of the cluster{} has what a replica leases: lease less for each, or add nodes",
                          needs.labels.empty() ? "" : " with these labels"));
}

} // namespace troupe::serving
