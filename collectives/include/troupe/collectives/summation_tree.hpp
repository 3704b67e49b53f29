#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::collectives {

/// The version of the rule below. It stands in checkpoints: another rule gives other bits.
inline constexpr std::uint32_t tree_version = 1;

/// A node of the canonical summation tree over `shards` logical shards: node (level k, index i) covers the shards
/// [i * 2^k, min((i + 1) * 2^k, shards)) and is the sum, left + right, of its children (k - 1, 2i) and (k - 1, 2i + 1).
/// A node whose right child is empty equals its left child: nothing is added. The tree depends on `shards` alone, so
/// a sum that follows it has the same bits however the shards are spread over workers.
struct tree_node {
  std::uint32_t level = 0;
  std::uint32_t index = 0;

  auto operator<=>(const tree_node&) const = default;
};

/// The level of the node that covers all shards: ceil(log2(shards)).
[[nodiscard]] std::uint32_t root_level(std::uint32_t shards) noexcept;

/// The shards under `node`, clipped at `shards`; empty beyond the tree's right edge.
[[nodiscard]] shard_range covered_shards(std::uint32_t shards, tree_node node) noexcept;

/// The largest subtrees that lie inside `range`, left to right: at most about 2 * log2(shards). Where a clipped node
/// equals its child, the higher one is named.
[[nodiscard]] std::vector<tree_node> maximal_nodes(std::uint32_t shards, shard_range range);

/// The even split: rank r of N owns [floor(r * shards / N), floor((r + 1) * shards / N)).
[[nodiscard]] shard_range owned_shards(std::uint32_t shards, std::uint32_t world_size, std::uint32_t rank) noexcept;

/// `owned_shards` of every rank, in rank order.
[[nodiscard]] std::vector<shard_range> even_ownership(std::uint32_t shards, std::uint32_t world_size);

/// One partial sum that a finish starts from: the `position`-th of `maximal_nodes` of the range of `rank`.
struct tree_operand {
  tree_node node;
  std::uint32_t rank = 0;
  std::uint32_t position = 0;

  bool operator==(const tree_operand&) const = default;
};

/// operands[target] = operands[target] + operands[source]; the target is the left operand, and the source is not used
/// again.
struct tree_addition {
  std::uint32_t target = 0;
  std::uint32_t source = 0;

  bool operator==(const tree_addition&) const = default;
};

/// A sum that a plan ends with, in the place of one of its operands.
struct tree_output {
  tree_node node;
  std::uint32_t operand = 0;

  bool operator==(const tree_output&) const = default;
};

/// How to get from everybody's partial sums to the root, or as far as their shards allow. Computed once for each
/// (shards, ownership).
struct finish_plan {
  /// From left to right in the tree.
  std::vector<tree_operand> operands;
  /// To be done in this order.
  std::vector<tree_addition> additions;
  /// What there is afterwards: the sum over all shards in the place of operand 0, if the operands cover all shards;
  /// else the largest subtrees that they cover, from left to right.
  std::vector<tree_output> outputs;

  /// The number of partial sums that `rank` contributes.
  [[nodiscard]] std::uint32_t count_of(std::uint32_t rank) const noexcept;
};

/// Plans the finish. `ownership` has one range for each rank, in any order of shards; empty ranges are allowed.
/// Fails with `errc::invalid_argument` unless every shard belongs to exactly one rank.
[[nodiscard]] expected<finish_plan> plan_finish(std::uint32_t shards, std::span<const shard_range> ownership);

/// Plans as much of the finish as some can do among themselves: `nodes[i]` are the subtrees that the i-th of them has,
/// and `tree_operand::rank` is i. Nodes are disjoint; nothing is checked.
[[nodiscard]] finish_plan plan_join(std::uint32_t shards, std::span<const std::vector<tree_node>> nodes);

} // namespace troupe::collectives
