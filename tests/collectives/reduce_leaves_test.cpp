#include "gloo_group.hpp"
#include "leaf_values.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <random>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

gloo_group& group_of(std::uint32_t world_size) {
  static std::map<std::uint32_t, std::unique_ptr<gloo_group>> groups;
  auto& group = groups[world_size];
  if (!group)
    group = std::make_unique<gloo_group>(world_size);
  return *group;
}

/// One step of a worker: its shards' contributions, reduced. Empty on an error.
std::vector<std::byte> reduce(communicator& group, const bucket_layout& layout, std::uint32_t shards,
                              const std::vector<shard_range>& ownership) {
  auto sums = leaf_accumulator::make(layout, shards);
  if (!sums)
    return {};
  const auto range = ownership[group.rank().value];
  sums->begin(range);
  for (auto shard = range.first; shard < range.last; ++shard)
    add_shard(layout, shard, sums->next(shard_id{shard}));
  sums->end();
  aligned_buffer result{layout.size_bytes()};
  if (!group.reduce_leaves(layout, shards, ownership, sums->partials(), result.bytes()))
    return {};
  return {result.bytes().begin(), result.bytes().end()};
}

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

void check_everywhere(std::uint32_t world_size, const bucket_layout& layout, std::uint32_t shards,
                      const std::vector<shard_range>& ownership, const std::vector<std::byte>& wanted) {
  INFO("ranks ", world_size, ", shards ", shards, ", bytes ", layout.size_bytes());
  const auto results =
      group_of(world_size).run([&](communicator& group) { return reduce(group, layout, shards, ownership); });
  for (const auto& x : results)
    CHECK(x == wanted);
}

/// The bytes that every rank sends in one call.
std::vector<std::uint64_t> sent_bytes(std::uint32_t world_size, const bucket_layout& layout, std::uint32_t shards,
                                      const std::vector<shard_range>& ownership) {
  return group_of(world_size).run([&](communicator& group) {
    const auto before = group.sent().sent_bytes;
    return reduce(group, layout, shards, ownership).empty() ? 0 : group.sent().sent_bytes - before;
  });
}

} // namespace

TEST_CASE("every world size gives the bits of the plain recursive sum") {
  for (const auto& layout : test_layouts())
    for (std::uint32_t shards : {1u, 3u, 8u, 13u, 16u}) {
      const auto wanted = reference_sum(layout, shards, {root_level(shards), 0});
      for (std::uint32_t world_size = 1; world_size <= std::min(8u, shards); ++world_size)
        check_everywhere(world_size, layout, shards, even_ownership(shards, world_size), wanted);
    }
}

TEST_CASE("every ownership gives the same bits, also with ranks that own nothing") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (const auto& layout : test_layouts())
    for (std::uint32_t shards : {1u, 3u, 13u, 16u}) {
      const auto wanted = reference_sum(layout, shards, {root_level(shards), 0});
      for (std::uint32_t world_size : {2u, 3u, 5u, 8u})
        for (int i = 0; i < 3; ++i)
          check_everywhere(world_size, layout, shards, random_ownership(shards, world_size, random), wanted);
    }
}

TEST_CASE("the group of one gives the same bits") {
  const auto alone = make_self_communicator(generation_id{1});
  for (const auto& layout : test_layouts())
    CHECK(reduce(*alone, layout, 13, {{0, 13}}) == reference_sum(layout, 13, {4, 0}));
}

TEST_CASE("aligned ranges send the bytes of a ring all-reduce") {
  const bucket_layout layout{{{dtype::f32, 16 * 64}, {dtype::f64, 8 * 64}}};
  const auto size = layout.size_bytes();
  for (std::uint32_t world_size : {2u, 4u, 8u})
    for (auto sent : sent_bytes(world_size, layout, 8, even_ownership(8, world_size)))
      CHECK(sent == 2 * (world_size - 1) * size / world_size);
}

TEST_CASE("an unaligned range sends one more slice for each of its subtrees") {
  const bucket_layout layout{{{dtype::f32, 16 * 128}}};
  const auto slice = layout.size_bytes() / 2;
  // [0, 3) is two subtrees and [3, 8) is two; each sends its partials' other half, and then its finished half.
  CHECK(sent_bytes(2, layout, 8, {{0, 3}, {3, 8}}) == std::vector<std::uint64_t>{3 * slice, 3 * slice});
  // [1, 7) is four subtrees, and nobody else has more than one.
  CHECK(sent_bytes(3, bucket_layout{{{dtype::f32, 16 * 300}}}, 8, {{0, 1}, {1, 7}, {7, 8}}) ==
        std::vector<std::uint64_t>{4 * 6400, 10 * 6400, 4 * 6400});
}

TEST_CASE("partial sums, ownership and result must fit together") {
  const bucket_layout layout{{{dtype::f32, 100}}};
  const auto alone = make_self_communicator(generation_id{1});
  auto sums = leaf_accumulator::make(layout, 4);
  REQUIRE(sums);
  sums->begin({0, 3});
  sums->end();
  aligned_buffer result{layout.size_bytes()};
  const auto code = [&](std::uint32_t shards, std::vector<shard_range> ownership, std::span<std::byte> out) {
    const auto done = alone->reduce_leaves(layout, shards, ownership, sums->partials(), out);
    return done ? errc::none : done.error().code;
  };
  CHECK(code(4, {{0, 4}}, result.bytes()) == errc::invalid_argument);
  CHECK(code(4, {{0, 3}}, result.bytes()) == errc::invalid_argument);
  CHECK(code(4, {{0, 2}, {2, 4}}, result.bytes()) == errc::invalid_argument);
  sums->begin({0, 4});
  sums->end();
  CHECK(code(4, {{0, 4}}, result.bytes().first(64)) == errc::invalid_argument);
  CHECK(code(4, {{0, 4}}, result.bytes()) == errc::none);
}
