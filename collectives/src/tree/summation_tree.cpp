#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <string>

namespace troupe::collectives {

namespace {

std::string to_text(shard_range range) {
  return fmt::format("[{}, {})", range.first, range.last);
}

/// Checks that the sorted ranges follow each other from 0 to `shards` without a gap.
expected<void> check_ownership(std::uint32_t shards, std::span<const shard_range> ownership) {
  std::vector<shard_range> sorted;
  std::copy_if(ownership.begin(), ownership.end(), std::back_inserter(sorted),
               [](shard_range x) { return x.first != x.last; });
  std::sort(sorted.begin(), sorted.end());
  std::uint32_t next = 0;
  for (auto range : sorted) {
    if (range.first != next || range.last < range.first || range.last > shards)
      return fail(errc::invalid_argument, fmt::format("the ownership of {} shards is not a partition at shard {}: a "
                                                      "rank owns {}; assign every shard to exactly one rank",
                                                      shards, next, to_text(range)));
    next = range.last;
  }
  if (next != shards)
    return fail(errc::invalid_argument,
                fmt::format("shards {} belong to no rank; assign every shard to exactly one rank",
                            to_text(shard_range{next, shards})));
  return {};
}

/// Adds a list of disjoint subtrees as a binary counter does: joins the last two as soon as they are siblings.
class joiner {
 public:
  joiner(std::uint32_t shards, std::vector<tree_addition>& additions) : shards_(shards), additions_(additions) {}

  void push(tree_node node, std::uint32_t operand) {
    stack_.push_back({node, operand});
    while (join_once()) {
    }
  }

  /// The sums that could not be joined further.
  std::vector<tree_output> outputs() const {
    std::vector<tree_output> result;
    for (const auto& x : stack_)
      result.push_back({x.node, x.operand});
    return result;
  }

 private:
  struct entry {
    tree_node node;
    std::uint32_t operand;
  };

  bool join_once() {
    auto& top = stack_.back();
    if (top.node.level == root_level(shards_))
      return false;
    const auto parent = tree_node{top.node.level + 1, top.node.index / 2};
    if (top.node.index % 2 == 0) {
      if (covered_shards(shards_, {top.node.level, top.node.index + 1}).size() != 0)
        return false;
      top.node = parent;
      return true;
    }
    if (stack_.size() < 2 || stack_[stack_.size() - 2].node != tree_node{top.node.level, top.node.index - 1})
      return false;
    auto& left = stack_[stack_.size() - 2];
    additions_.push_back({left.operand, top.operand});
    left.node = parent;
    stack_.pop_back();
    return true;
  }

  std::uint32_t shards_;
  std::vector<tree_addition>& additions_;
  std::vector<entry> stack_;
};

} // namespace

std::uint32_t root_level(std::uint32_t shards) noexcept {
  return shards <= 1 ? 0 : static_cast<std::uint32_t>(std::bit_width(shards - 1));
}

shard_range covered_shards(std::uint32_t shards, tree_node node) noexcept {
  const auto first = std::uint64_t{node.index} << node.level;
  const auto last = (std::uint64_t{node.index} + 1) << node.level;
  return {static_cast<std::uint32_t>(std::min<std::uint64_t>(first, shards)),
          static_cast<std::uint32_t>(std::min<std::uint64_t>(last, shards))};
}

std::vector<tree_node> maximal_nodes(std::uint32_t shards, shard_range range) {
  std::vector<tree_node> result;
  const auto last = std::min(range.last, shards);
  for (auto first = range.first; first < last;) {
    auto node = tree_node{0, first};
    while (node.level < root_level(shards) && node.index % 2 == 0 &&
           covered_shards(shards, {node.level + 1, node.index / 2}).last <= last)
      node = {node.level + 1, node.index / 2};
    result.push_back(node);
    first = covered_shards(shards, node).last;
  }
  return result;
}

shard_range owned_shards(std::uint32_t shards, std::uint32_t world_size, std::uint32_t rank) noexcept {
  const auto bound = [&](std::uint64_t r) { return static_cast<std::uint32_t>(r * shards / world_size); };
  return {bound(rank), bound(std::uint64_t{rank} + 1)};
}

std::vector<shard_range> even_ownership(std::uint32_t shards, std::uint32_t world_size) {
  std::vector<shard_range> result(world_size);
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    result[rank] = owned_shards(shards, world_size, rank);
  return result;
}

std::uint32_t finish_plan::count_of(std::uint32_t rank) const noexcept {
  return static_cast<std::uint32_t>(
      std::count_if(operands.begin(), operands.end(), [rank](const tree_operand& x) { return x.rank == rank; }));
}

expected<finish_plan> plan_finish(std::uint32_t shards, std::span<const shard_range> ownership) {
  if (shards == 0)
    return fail(errc::invalid_argument, "a summation tree needs at least one shard");
  TROUPE_TRY(check_ownership(shards, ownership));
  std::vector<std::vector<tree_node>> nodes;
  for (auto range : ownership)
    nodes.push_back(maximal_nodes(shards, range));
  return plan_join(shards, nodes);
}

finish_plan plan_join(std::uint32_t shards, std::span<const std::vector<tree_node>> nodes) {
  finish_plan plan;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank)
    for (std::uint32_t position = 0; position < nodes[rank].size(); ++position)
      plan.operands.push_back({nodes[rank][position], rank, position});
  std::sort(plan.operands.begin(), plan.operands.end(), [shards](const tree_operand& x, const tree_operand& y) {
    return covered_shards(shards, x.node).first < covered_shards(shards, y.node).first;
  });
  joiner join{shards, plan.additions};
  for (std::uint32_t i = 0; i < plan.operands.size(); ++i)
    join.push(plan.operands[i].node, i);
  plan.outputs = join.outputs();
  return plan;
}

} // namespace troupe::collectives
