#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/nodes.hpp>

#include <string>
#include <vector>

/// What `troupe nodes` says.
namespace troupe::tool {

/// A line for each node, under a heading.
[[nodiscard]] std::string table_of(const std::vector<runtime::asked_node>& nodes);

/// The same as a JSON document.
[[nodiscard]] std::string json_of(const std::vector<runtime::asked_node>& nodes);

/// The address of the node that a user means: its HOST:PORT, or its host's name or address if one node alone has it.
/// Fails with `errc::not_found` or, if there are several, `errc::invalid_argument`.
[[nodiscard]] expected<std::string> find_node(const std::vector<runtime::asked_node>& nodes, const std::string& name);

} // namespace troupe::tool
