#pragma once

#include <map>
#include <string>

/// The labels of nodes (`caf-node --label NAME=VALUE`), by name. Pure.
namespace troupe::actors {

using node_labels = std::map<std::string, std::string>;

/// Whether a node with `labels` has all that are wanted.
[[nodiscard]] bool has_labels(const node_labels& labels, const node_labels& wanted);

/// "kind=serving, zone=a".
[[nodiscard]] std::string describe(const node_labels& labels);

} // namespace troupe::actors
