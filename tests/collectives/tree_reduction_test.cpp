#include "leaf_values.hpp"
#include "tree/tree_reduction.hpp"

#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <random>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

std::vector<bucket_layout> layouts() {
  auto result = test_layouts();
  // Several blocks whose ends coincide with segment ends.
  result.push_back(bucket_layout{{{dtype::f32, 9000}}});
  result.push_back(bucket_layout{{{dtype::bf16, 9001}, {dtype::f64, 3000}, {dtype::f16, 5000}}});
  return result;
}

/// The subtrees of some ranks of an ownership, and the sums over them.
struct offer {
  std::vector<std::vector<tree_node>> nodes;
  finish_plan plan;
  std::vector<std::vector<std::byte>> sums;
};

offer offer_of(const bucket_layout& layout, std::uint32_t shards, const std::vector<shard_range>& ranges) {
  offer result;
  for (auto range : ranges)
    result.nodes.push_back(maximal_nodes(shards, range));
  result.plan = plan_join(shards, result.nodes);
  for (const auto& x : result.plan.operands)
    result.sums.push_back(reference_sum(layout, shards, x.node));
  return result;
}

/// Runs a whole bucket in slices, from sums; gives the outputs.
std::vector<std::vector<std::byte>> run(const bucket_layout& layout, const offer& x, root_kind root,
                                        std::uint64_t divisor, const std::vector<byte_range>& slices,
                                        std::size_t helpers = 0) {
  const auto sums = layout.sums();
  const tree_reduction what{x.plan, layout, sums, reduce_op::sum, divisor, operand_kind::sums, root};
  const auto out_bytes = root == root_kind::partial_sum ? sums.size_bytes() : layout.size_bytes();
  std::vector<std::vector<std::byte>> outs(x.plan.outputs.size(), std::vector<std::byte>(out_bytes, std::byte{0xee}));
  slice_reducer reducer;
  if (helpers != 0)
    reducer.take_helpers(helpers);
  for (auto slice : slices) {
    // Operands are passed from the slice's start on, so that nothing before it can be read by mistake.
    std::vector<const std::byte*> operands(x.sums.size());
    std::ranges::transform(x.sums, operands.begin(),
                           [&](const auto& sum) { return sum.data() + layout.offset_in_sums(slice.first); });
    std::vector<std::byte*> at;
    for (auto& out : outs)
      at.push_back(out.data() + (root == root_kind::partial_sum ? layout.offset_in_sums(slice.first) : slice.first));
    reducer.run(what, operands, slice.first, slice, at);
  }
  return outs;
}

std::vector<byte_range> random_slices(const bucket_layout& layout, std::mt19937& random) {
  std::vector<std::uint64_t> cuts = {0, layout.size_bytes()};
  for (int i = 0; i < 3; ++i)
    cuts.push_back(random() % (layout.size_bytes() / 64 + 1) * 64);
  std::ranges::sort(cuts);
  std::vector<byte_range> result;
  for (std::size_t i = 1; i < cuts.size(); ++i)
    result.push_back({cuts[i - 1], cuts[i]});
  return result;
}

std::vector<shard_range> random_ranges(std::uint32_t shards, std::uint32_t ranks, std::mt19937& random) {
  std::vector<std::uint32_t> cuts = {0, shards};
  for (std::uint32_t i = 1; i < ranks; ++i)
    cuts.push_back(random() % (shards + 1));
  std::ranges::sort(cuts);
  std::vector<shard_range> result;
  for (std::uint32_t i = 0; i < ranks; ++i)
    result.push_back({cuts[i], cuts[i + 1]});
  std::ranges::shuffle(result, random);
  return result;
}

} // namespace

TEST_CASE("a whole tree, in any slices, gives the bits of the plain recursive sum, divided and rounded once") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (const auto& layout : layouts())
    for (std::uint32_t shards : {1u, 3u, 8u, 13u})
      for (std::uint64_t divisor : {1u, 96u})
        for (std::uint32_t ranks : {1u, 2u, 5u}) {
          INFO("shards ", shards, ", ranks ", ranks, ", divisor ", divisor, ", bytes ", layout.size_bytes());
          const auto x = offer_of(layout, shards, random_ranges(shards, ranks, random));
          const auto outs = run(layout, x, root_kind::final_result, divisor, random_slices(layout, random));
          REQUIRE(outs.size() == 1);
          CHECK(outs[0] == reference_root(layout, shards, divisor));
        }
}

TEST_CASE("a subset of ranks gives the sums over the largest subtrees it covers, undivided and unrounded") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (const auto& layout : layouts())
    for (std::uint32_t shards : {3u, 8u, 13u, 16u}) {
      auto ranges = random_ranges(shards, 6, random);
      ranges.resize(3);
      const auto x = offer_of(layout, shards, ranges);
      const auto outs = run(layout, x, root_kind::partial_sum, 96, random_slices(layout, random));
      REQUIRE(outs.size() == x.plan.outputs.size());
      for (std::size_t k = 0; k < outs.size(); ++k)
        CHECK(outs[k] == reference_sum(layout, shards, x.plan.outputs[k].node));
    }
}

TEST_CASE("helper threads do not change the bits, for large and small slices alternately") {
  const std::vector<bucket_layout> large{bucket_layout{{{dtype::f32, 300'001}}},
                                         bucket_layout{{{dtype::bf16, 400'003}, {dtype::f64, 77'777}}}};
  std::mt19937 random{17};
  for (const auto& layout : large)
    for (std::size_t helpers : {1u, 3u, 6u}) {
      INFO("helpers ", helpers, ", bytes ", layout.size_bytes());
      auto slices = random_slices(layout, random);
      const auto x = offer_of(layout, 5, random_ranges(5, 3, random));
      const auto whole = run(layout, x, root_kind::final_result, 7, slices, helpers);
      REQUIRE(whole.size() == 1);
      CHECK(whole[0] == reference_root(layout, 5, 7));
      const auto part = offer_of(layout, 6, {{1, 6}});
      const auto sums = run(layout, part, root_kind::partial_sum, 7, slices, helpers);
      for (std::size_t k = 0; k < sums.size(); ++k)
        CHECK(sums[k] == reference_sum(layout, 6, part.plan.outputs[k].node));
    }
}

TEST_CASE("a sum may replace an operand") {
  const bucket_layout layout{{{dtype::f32, 9000}, {dtype::i64, 100}}};
  for (std::size_t target : {0u, 1u, 2u}) {
    auto x = offer_of(layout, 3, {{0, 1}, {1, 2}, {2, 3}});
    const auto sums = layout.sums();
    std::vector<const std::byte*> operands;
    for (const auto& sum : x.sums)
      operands.push_back(sum.data());
    auto* out = x.sums[target].data();
    slice_reducer{}.run({x.plan, layout, sums, reduce_op::sum, 7, operand_kind::sums, root_kind::final_result},
                        operands, 0, {0, layout.size_bytes()}, {&out, 1});
    CHECK(x.sums[target] == reference_root(layout, 3, 7));
  }
}

TEST_CASE("contributions of 16-bit floats are widened first, and nothing is written into them") {
  const bucket_layout layout{{{dtype::f16, 10'000}}};
  const auto sums = layout.sums();
  const auto plan = *plan_finish(3, even_ownership(3, 3));
  std::vector<std::vector<std::byte>> contributions(3, std::vector<std::byte>(layout.size_bytes()));
  std::vector<const std::byte*> operands;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    add_shard(layout, rank, contributions[rank]);
    operands.push_back(contributions[rank].data());
  }
  const auto before = contributions;
  std::vector<std::byte> result(layout.size_bytes());
  auto* out = result.data();
  slice_reducer{}.run({plan, layout, sums, reduce_op::sum, 5, operand_kind::contributions, root_kind::final_result},
                      operands, 0, {0, layout.size_bytes()}, {&out, 1});
  CHECK(contributions == before);
  CHECK(result == reference_root(layout, 3, 5));
}
