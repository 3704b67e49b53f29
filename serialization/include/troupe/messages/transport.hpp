#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>

/// How the ranks of a group reach each other.
namespace troupe {

/// Which communicator carries the gradients, or the state of a staging group.
enum class transport_kind : std::uint8_t {
  self = 1,
  tcp = 2,
  shm = 3,
  hierarchical = 4,
};

TROUPE_INSPECT_ENUM(transport_kind, self, hierarchical)

/// Neighbouring ranks of a group that are on one node.
struct node_ranks {
  /// The node's index.
  std::uint32_t node = 0;
  std::uint32_t count = 0;

  bool operator==(const node_ranks&) const = default;
};

TROUPE_INSPECT(node_ranks, node, count)

} // namespace troupe
