#pragma once

#include <troupe/error.hpp>
#include <troupe/resources.hpp>
#include <troupe/runtime/nodes.hpp>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe::serving {

/// What a node must have to get replicas.
struct replica_needs {
  std::map<std::string, std::string> labels = {};
  resources each = {};
};

/// The addresses of the nodes that take replicas: available, with the labels, and with capacity for one, whoever has
/// it now. Fails with `errc::unsatisfiable`, naming what is lacking. Pure.
[[nodiscard]] expected<std::vector<std::string>> nodes_for_replicas(std::span<const runtime::asked_node> nodes,
                                                                    const replica_needs& needs);

} // namespace troupe::serving
