#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;

namespace {

std::string joined(const std::string& left, const std::string& right) {
  std::string result = "(";
  return result.append(left).append("+").append(right).append(")");
}

/// The sum of a subtree, written down: "((0+1)+2)".
std::string expression(std::uint32_t shards, tree_node node) {
  if (node.level == 0)
    return std::to_string(node.index);
  const tree_node left{node.level - 1, 2 * node.index};
  const tree_node right{node.level - 1, 2 * node.index + 1};
  if (covered_shards(shards, right).size() == 0)
    return expression(shards, left);
  return joined(expression(shards, left), expression(shards, right));
}

std::string root_expression(std::uint32_t shards) {
  return expression(shards, {root_level(shards), 0});
}

/// What a plan computes, written down.
std::string execute(std::uint32_t shards, const finish_plan& plan) {
  std::vector<std::string> values;
  for (const auto& operand : plan.operands)
    values.push_back(expression(shards, operand.node));
  for (auto [target, source] : plan.additions)
    values[target] = joined(values[target], values[source]);
  return values.front();
}

/// What each output of a plan is, written down.
std::vector<std::string> outputs_of(std::uint32_t shards, const finish_plan& plan) {
  std::vector<std::string> values;
  for (const auto& operand : plan.operands)
    values.push_back(expression(shards, operand.node));
  for (auto [target, source] : plan.additions)
    values[target] = joined(values[target], std::exchange(values[source], "used"));
  std::vector<std::string> result;
  for (const auto& output : plan.outputs)
    result.push_back(values[output.operand]);
  return result;
}

/// Cuts [0, shards) at random places and deals the pieces to ranks in random order.
std::vector<shard_range> random_ownership(std::uint32_t shards, std::uint32_t world_size, std::mt19937& random) {
  std::vector<std::uint32_t> cuts = {0, shards};
  for (std::uint32_t i = 1; i < world_size; ++i)
    cuts.push_back(std::uniform_int_distribution<std::uint32_t>{0, shards}(random));
  std::ranges::sort(cuts);
  std::vector<shard_range> result;
  for (std::uint32_t i = 0; i < world_size; ++i)
    result.push_back({cuts[i], cuts[i + 1]});
  std::ranges::shuffle(result, random);
  return result;
}

} // namespace

TEST_CASE("the tree is dyadic and clipped at the last shard") {
  CHECK(root_expression(1) == "0");
  CHECK(root_expression(3) == "((0+1)+2)");
  CHECK(root_expression(4) == "((0+1)+(2+3))");
  CHECK(root_expression(5) == "(((0+1)+(2+3))+4)");
  CHECK(root_expression(6) == "(((0+1)+(2+3))+(4+5))");
}

TEST_CASE("the root level is the rounded-up logarithm") {
  CHECK(root_level(1) == 0);
  CHECK(root_level(2) == 1);
  CHECK(root_level(3) == 2);
  CHECK(root_level(8) == 3);
  CHECK(root_level(9) == 4);
  CHECK(root_level(UINT32_MAX) == 32);
}

TEST_CASE("maximal nodes are the largest subtrees inside a range") {
  using nodes = std::vector<tree_node>;
  CHECK(maximal_nodes(8, {0, 8}) == nodes{{3, 0}});
  CHECK(maximal_nodes(8, {0, 4}) == nodes{{2, 0}});
  CHECK(maximal_nodes(8, {1, 7}) == nodes{{0, 1}, {1, 1}, {1, 2}, {0, 6}});
  CHECK(maximal_nodes(3, {2, 3}) == nodes{{1, 1}});
  CHECK(maximal_nodes(3, {0, 3}) == nodes{{2, 0}});
  CHECK(maximal_nodes(1, {0, 1}) == nodes{{0, 0}});
  CHECK(maximal_nodes(8, {4, 4}).empty());
}

TEST_CASE("maximal nodes cover exactly their range, none could be larger, and they are few") {
  for (std::uint32_t shards = 1; shards <= 33; ++shards)
    for (std::uint32_t first = 0; first <= shards; ++first)
      for (std::uint32_t last = first; last <= shards; ++last) {
        const auto nodes = maximal_nodes(shards, {first, last});
        auto next = first;
        for (auto node : nodes) {
          const auto covered = covered_shards(shards, node);
          REQUIRE(covered.first == next);
          next = covered.last;
          const auto parent = covered_shards(shards, {node.level + 1, node.index / 2});
          REQUIRE((node.level == root_level(shards) || parent.first < first || parent.last > last));
        }
        REQUIRE(next == last);
        REQUIRE(nodes.size() <= std::max(1u, 2 * root_level(shards)));
      }
}

TEST_CASE("the even split gives every shard to one rank, in rank order") {
  for (std::uint32_t shards : {1u, 3u, 8u, 13u, 4000000000u})
    for (std::uint32_t world_size = 1; world_size <= 9; ++world_size) {
      std::uint32_t next = 0;
      for (auto range : even_ownership(shards, world_size)) {
        REQUIRE(range.first == next);
        next = range.last;
      }
      REQUIRE(next == shards);
    }
}

TEST_CASE("a plan computes the canonical expression for every ownership") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (std::uint32_t shards = 1; shards <= 40; ++shards)
    for (std::uint32_t world_size = 1; world_size <= 8; ++world_size)
      for (int i = 0; i < 5; ++i) {
        const auto ownership = random_ownership(shards, world_size, random);
        const auto plan = plan_finish(shards, ownership);
        REQUIRE(plan);
        REQUIRE(execute(shards, *plan) == root_expression(shards));
      }
}

TEST_CASE(
    "some ranks join as much as they have: the largest subtrees, from left to right, by the canonical expression") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (std::uint32_t shards = 1; shards <= 40; ++shards)
    for (std::uint32_t world_size = 1; world_size <= 8; ++world_size)
      for (std::uint32_t some = 0; some <= world_size; ++some) {
        auto ownership = random_ownership(shards, world_size, random);
        ownership.resize(some);
        std::vector<std::vector<tree_node>> nodes;
        std::vector<bool> is_covered(shards);
        for (auto range : ownership) {
          nodes.push_back(maximal_nodes(shards, range));
          std::fill(is_covered.begin() + range.first, is_covered.begin() + range.last, true);
        }
        // What they cover, in contiguous stretches, has the same largest subtrees for any distribution.
        std::vector<tree_node> wanted;
        for (std::uint32_t first = 0; first < shards;) {
          auto last = first;
          while (last < shards && is_covered[last])
            ++last;
          std::ranges::copy(maximal_nodes(shards, {first, last}), std::back_inserter(wanted));
          first = last + 1;
        }
        const auto plan = plan_join(shards, nodes);
        std::vector<tree_node> outputs;
        std::vector<std::string> expressions;
        for (const auto& output : plan.outputs) {
          outputs.push_back(output.node);
          expressions.push_back(expression(shards, output.node));
        }
        REQUIRE(outputs == wanted);
        REQUIRE(outputs_of(shards, plan) == expressions);
        REQUIRE(plan.operands.size() == plan.additions.size() + plan.outputs.size());
      }
}

TEST_CASE("joining within groups first and then across groups gives the same tree") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (std::uint32_t shards = 1; shards <= 40; ++shards)
    for (int again = 0; again < 10; ++again) {
      const auto ownership = random_ownership(shards, 6, random);
      std::vector<std::vector<tree_node>> of_groups;
      for (std::size_t group = 0; group < 3; ++group) {
        const std::vector<std::vector<tree_node>> nodes{maximal_nodes(shards, ownership[2 * group]),
                                                        maximal_nodes(shards, ownership[2 * group + 1])};
        auto& mine = of_groups.emplace_back();
        for (const auto& output : plan_join(shards, nodes).outputs)
          mine.push_back(output.node);
      }
      const auto plan = plan_join(shards, of_groups);
      REQUIRE(plan.outputs == std::vector<tree_output>{{{root_level(shards), 0}, 0}});
      REQUIRE(execute(shards, plan) == root_expression(shards));
    }
}

TEST_CASE("a rank's operands are its maximal nodes, numbered") {
  const auto plan = plan_finish(8, std::vector<shard_range>{{3, 8}, {0, 3}});
  REQUIRE(plan);
  CHECK(plan->operands == std::vector<tree_operand>{{{1, 0}, 1, 0}, {{0, 2}, 1, 1}, {{0, 3}, 0, 0}, {{2, 1}, 0, 1}});
  CHECK(plan->additions == std::vector<tree_addition>{{1, 2}, {0, 1}, {0, 3}});
  CHECK(plan->count_of(0) == 2);
  CHECK(plan->count_of(2) == 0);
}

TEST_CASE("an ownership that is not a partition is rejected") {
  const auto code = [](std::uint32_t shards, std::vector<shard_range> ownership) {
    const auto plan = plan_finish(shards, ownership);
    return plan ? errc::none : plan.error().code;
  };
  CHECK(code(8, {{0, 4}, {4, 8}}) == errc::none);
  CHECK(code(8, {{0, 4}, {5, 8}}) == errc::invalid_argument);
  CHECK(code(8, {{0, 5}, {4, 8}}) == errc::invalid_argument);
  CHECK(code(8, {{0, 4}, {4, 7}}) == errc::invalid_argument);
  CHECK(code(8, {{0, 9}}) == errc::invalid_argument);
  CHECK(code(8, {{0, 8}, {6, 2}}) == errc::invalid_argument);
  CHECK(code(8, {}) == errc::invalid_argument);
  CHECK(code(0, {}) == errc::invalid_argument);
}
