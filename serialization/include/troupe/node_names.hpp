#pragma once

#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// How drivers, tools and nodes name nodes, and what nodes have. Pure functions.
namespace troupe {

struct cluster_config;

/// The port of a caf-node whose port is not said.
inline constexpr std::uint16_t default_node_port = 4000;

/// A node that a run may use.
struct named_node {
  /// HOST:PORT.
  std::string address;
  /// At most so many of the run's workers; nothing: as many as it has room for.
  std::optional<std::uint32_t> slots = {};

  bool operator==(const named_node&) const = default;
};

/// Reads the text of a host file, or what a discovery script prints: a line for each node, `HOST[:PORT] [slots=N]`;
/// empty lines, and what follows `#`, do not count. Fails with `errc::invalid_argument`, naming the line, and for a
/// text without nodes. `name` is where it comes from, for messages.
[[nodiscard]] expected<std::vector<named_node>> parse_hosts(const std::string& name, const std::string& text);

/// Sets the cluster's nodes as users write them in one word: `HOST:PORT` of each, separated by commas, or `dns:NAME`.
/// Fails with `errc::invalid_argument`.
[[nodiscard]] expected<void> name_nodes(cluster_config& cluster, const std::string& text);

/// The longest text of a label or a resource's name, and the most that a node has of each.
inline constexpr std::size_t node_text_limit_bytes = 256;
inline constexpr std::size_t node_list_limit = 256;

/// Rejects with `errc::invalid_argument` labels, and names of resources, that are too many, too long, or have other
/// than printable ASCII.
[[nodiscard]] expected<void> validate_names(const std::map<std::string, std::string>& labels, const resources& offered);

} // namespace troupe
