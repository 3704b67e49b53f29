#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::collectives {

/// The version of the rule below, stored in checkpoints: another rule gives other bits.
inline constexpr std::uint32_t tree_version = 1;

/// A node of the canonical summation tree over `shards` logical shards. Node (level k, index i) covers the shards [i *
/// 2^k, min((i + 1) * 2^k, shards)) and is the sum, left + right, of its children (k - 1, 2i) and (k - 1, 2i + 1). If
/// its right child is empty, the node equals its left child and nothing is added. The tree depends on `shards` alone,
/// so the sum has the same bits however the shards are distributed over workers.
struct tree_node {
  std::uint32_t level = 0;
  std::uint32_t index = 0;

  auto operator<=>(const tree_node&) const = default;
};

/// The level of the node that covers all shards: ceil(log2(shards)).
[[nodiscard]] std::uint32_t root_level(std::uint32_t shards) noexcept;

/// The shards under `node`, clipped to `shards`; empty beyond the tree's right edge.
[[nodiscard]] shard_range covered_shards(std::uint32_t shards, tree_node node) noexcept;

/// The largest subtrees inside `range`, from left to right: at most about 2 * log2(shards). Of a clipped node and the
/// child it equals, the higher one is listed.
[[nodiscard]] std::vector<tree_node> maximal_nodes(std::uint32_t shards, shard_range range);

/// The even split: rank r of N owns [floor(r * shards / N), floor((r + 1) * shards / N)).
[[nodiscard]] shard_range owned_shards(std::uint32_t shards, std::uint32_t world_size, std::uint32_t rank) noexcept;

/// `owned_shards` of every rank, in rank order.
[[nodiscard]] std::vector<shard_range> even_ownership(std::uint32_t shards, std::uint32_t world_size);

/// One partial sum that the finish starts from: number `position` of the `maximal_nodes` of rank `rank`'s range.
struct tree_operand {
  tree_node node;
  std::uint32_t rank = 0;
  std::uint32_t position = 0;

  bool operator==(const tree_operand&) const = default;
};

/// operands[target] = operands[target] + operands[source]. The target is the left operand; the source is not used
/// again.
struct tree_addition {
  std::uint32_t target = 0;
  std::uint32_t source = 0;

  bool operator==(const tree_addition&) const = default;
};

/// A sum that remains at the end of a plan, in the place of one of its operands.
struct tree_output {
  tree_node node;
  std::uint32_t operand = 0;

  bool operator==(const tree_output&) const = default;
};

/// The additions that lead from all ranks' partial sums to the root, or as far as their shards allow. Computed once per
/// (shards, ownership).
struct finish_plan {
  /// From left to right in the tree.
  std::vector<tree_operand> operands;
  /// In execution order.
  std::vector<tree_addition> additions;
  /// The remaining sums. If the operands cover all shards: the total, in the place of operand 0. Otherwise the largest
  /// subtrees they cover, from left to right.
  std::vector<tree_output> outputs;

  /// The number of partial sums that `rank` contributes.
  [[nodiscard]] std::uint32_t count_of(std::uint32_t rank) const noexcept;
};

/// Plans the finish. `ownership` has one range per rank, in any order of shards; ranges may be empty. Fails with
/// `errc::invalid_argument` unless every shard belongs to exactly one rank.
[[nodiscard]] expected<finish_plan> plan_finish(std::uint32_t shards, std::span<const shard_range> ownership);

/// Plans the part of the finish that a subset of ranks can do among themselves. Member i has the subtrees `nodes[i]`,
/// and `tree_operand::rank` is i. The nodes must be disjoint; this is not checked.
[[nodiscard]] finish_plan plan_join(std::uint32_t shards, std::span<const std::vector<tree_node>> nodes);

} // namespace troupe::collectives
