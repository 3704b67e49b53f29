#include "leaf_values.hpp"
#include "rank_group.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <random>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

struct reduction_case {
  bucket_layout layout;
  std::uint32_t shards = 1;
  std::vector<shard_range> ownership;
  std::uint64_t divisor = 1;
  /// By default a whole bucket at a time.
  std::uint64_t part_bytes = UINT64_MAX;
  /// Whether partial sums are in the group's memory.
  bool is_registered = true;
};

/// One step of a worker: its shards' contributions, reduced. Empty on an error.
std::vector<std::byte> reduce(communicator& group, const reduction_case& x) {
  auto sums =
      leaf_accumulator::make(x.layout, x.shards, x.is_registered ? group.memory() : *std::pmr::new_delete_resource());
  auto result = group.make_bucket(x.layout, cut_bucket(x.layout, x.part_bytes));
  if (!sums || !result)
    return {};
  const auto range = x.ownership[group.rank().value];
  // Twice: the second step finds the memory as the first left it.
  for (int step = 0; step < 2; ++step) {
    sums->begin(range);
    for (auto shard = range.first; shard < range.last; ++shard)
      add_shard(x.layout, shard, sums->next(shard_id{shard}));
    sums->end();
    for (std::size_t part = 0; part < (*result)->parts().size(); ++part)
      if (!group.reduce_leaves(x.layout, x.shards, x.ownership, sums->partials(), **result, x.divisor, part))
        return {};
  }
  auto copy = std::vector<std::byte>((*result)->bytes().begin(), (*result)->bytes().end());
  // A peer may still read this rank's part of its result after this rank has released its own.
  return copy;
}

/// Buckets that are cut into slices, some of which are empty.
std::vector<bucket_layout> large_layouts() {
  return {bucket_layout{{{dtype::f32, 5000}}}, bucket_layout{{{dtype::bf16, 3001}, {dtype::f64, 4}}},
          bucket_layout{{{dtype::f16, 9000}, {dtype::f32, 9000}, {dtype::i64, 7}, {dtype::f64, 2}}}};
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

void check_everywhere(std::uint32_t world_size, const reduction_case& x, const std::vector<std::byte>& wanted) {
  for (auto kind : all_transports) {
    INFO(to_string(kind), ", ranks ", world_size, ", shards ", x.shards, ", bytes ", x.layout.size_bytes());
    const auto results = group_of(kind, world_size).run([&](communicator& group) { return reduce(group, x); });
    for (const auto& result : results)
      CHECK(result == wanted);
  }
}

/// The bytes that every rank sends in one call.
std::vector<std::uint64_t> sent_bytes(std::uint32_t world_size, const bucket_layout& layout, std::uint32_t shards,
                                      const std::vector<shard_range>& ownership) {
  return group_of(swept_transport::tcp, world_size).run([&](communicator& group) {
    const auto before = group.sent().sent_bytes;
    return reduce(group, {layout, shards, ownership}).empty() ? 0 : (group.sent().sent_bytes - before) / 2;
  });
}

} // namespace

TEST_CASE("every world size gives the bits of the plain recursive sum") {
  for (const auto& layout : test_layouts())
    for (std::uint32_t shards : {1u, 3u, 8u, 13u, 16u}) {
      const auto wanted = reference_root(layout, shards);
      for (std::uint32_t world_size = 1; world_size <= std::min(8u, shards); ++world_size)
        check_everywhere(world_size, {layout, shards, even_ownership(shards, world_size)}, wanted);
    }
}

TEST_CASE("every ownership gives the same bits, even if some ranks own nothing") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (const auto& layout : test_layouts())
    for (std::uint32_t shards : {1u, 3u, 13u, 16u}) {
      const auto wanted = reference_root(layout, shards);
      for (std::uint32_t world_size : {2u, 3u, 5u, 8u})
        for (int i = 0; i < 3; ++i)
          check_everywhere(world_size, {layout, shards, random_ownership(shards, world_size, random)}, wanted);
    }
}

TEST_CASE("large buckets, whole or in parts, divided or not, give the bits of the plain recursive sum") {
  for (const auto& layout : large_layouts())
    for (std::uint32_t shards : {3u, 8u})
      for (std::uint64_t divisor : {1u, 96u}) {
        const auto wanted = reference_root(layout, shards, divisor);
        for (std::uint32_t world_size : {1u, 2u, 3u, 8u})
          for (std::uint64_t part_bytes : {UINT64_MAX, std::uint64_t{8192}})
            for (auto is_registered : {true, false})
              if (world_size <= shards)
                check_everywhere(
                    world_size,
                    {layout, shards, even_ownership(shards, world_size), divisor, part_bytes, is_registered}, wanted);
      }
}

TEST_CASE("several ranks of each host carry large buckets to the other hosts, with the same bits") {
  const bucket_layout mixed{{{dtype::bf16, 300'001}, {dtype::f32, 200'000}, {dtype::f64, 7}}};
  const bucket_layout in_pieces{{{dtype::f32, 1'500'000}}};
  const std::uint32_t shards = 8;
  for (const auto* layout : {&mixed, &in_pieces}) {
    const auto wanted = reference_root(*layout, shards, 3);
    for (const auto& hosts : std::vector<std::vector<std::uint32_t>>{
             {0, 0, 1, 1}, {0, 0, 0, 1, 1}, {0, 1, 0, 1, 0, 1}, {0, 0, 1, 1, 2, 2, 2}}) {
      const auto size = static_cast<std::uint32_t>(hosts.size());
      INFO("hosts ", doctest::toString(hosts.size()), ", bytes ", layout->size_bytes());
      auto group = rank_group{swept_transport::hierarchical, size, std::chrono::seconds{120}, generation_id{1}, hosts};
      for (std::uint64_t part_bytes : {UINT64_MAX, std::uint64_t{1} << 20}) {
        const auto results = group.run([&](communicator& member) {
          return reduce(member, {*layout, shards, even_ownership(shards, size), 3, part_bytes});
        });
        for (const auto& result : results)
          CHECK(result == wanted);
      }
    }
  }
}

TEST_CASE("many ranks halve and double, in messages of a power of two of ranks, with the same bits") {
  // Beyond recursive doubling; the last is beyond halving, and cut into slices of which some are empty.
  for (const auto& layout :
       {bucket_layout{{{dtype::f32, 20'000}}}, bucket_layout{{{dtype::bf16, 60'001}, {dtype::f64, 4}, {dtype::f32, 9}}},
        bucket_layout{{{dtype::bf16, 200'000}, {dtype::f32, 30'000}}}, bucket_layout{{{dtype::f32, 250'000}}}})
    for (std::uint32_t shards : {16u, 32u}) {
      const auto wanted = reference_root(layout, shards, 3);
      for (std::uint32_t size : {15u, 16u}) {
        INFO("ranks ", size, ", bytes ", layout.size_bytes());
        // Also a part that does not begin where the bucket does.
        for (std::uint64_t part_bytes : {UINT64_MAX, std::uint64_t{200} << 10})
          for (const auto& result : group_of(swept_transport::tcp, size).run([&](communicator& member) {
                 return reduce(member, {layout, shards, even_ownership(shards, size), 3, part_bytes});
               }))
            CHECK(result == wanted);
      }
    }
}

TEST_CASE("halving and doubling sends the bytes of a ring") {
  const bucket_layout layout{{{dtype::f32, 32'768}, {dtype::f64, 16'384}}};
  for (auto sent : sent_bytes(16, layout, 16, even_ownership(16, 16)))
    CHECK(sent == std::uint64_t{30} * layout.size_bytes() / 16);
  // In fewer messages than two phases, which have 30 of each rank.
  const auto messages = group_of(swept_transport::tcp, 16).run([&](communicator& group) {
    const auto before = group.sent().sent_messages;
    return reduce(group, {layout, 16, even_ownership(16, 16)}).empty() ? 0 : (group.sent().sent_messages - before) / 2;
  });
  for (auto sent : messages)
    CHECK(sent == 8);
}

TEST_CASE("the ranks of a host share the bytes that it sends") {
  const bucket_layout layout{{{dtype::f32, 1'000'000}}};
  auto group = rank_group{swept_transport::hierarchical, 4, std::chrono::seconds{120}, generation_id{1}, {0, 0, 1, 1}};
  const auto sent = group.run([&](communicator& member) {
    const auto before = member.sent().sent_bytes;
    const auto reduced = reduce(member, {layout, 4, even_ownership(4, 4)});
    return reduced.empty() ? 0 : member.sent().sent_bytes - before;
  });
  // In each of two calls half of a column twice, and it reads the other rank's part of its own column.
  for (const auto x : sent)
    CHECK(x == doctest::Approx(static_cast<double>(2 * layout.size_bytes())).epsilon(0.01));
}

TEST_CASE("the group of one gives the same bits") {
  const auto alone = make_self_communicator(generation_id{1});
  for (const auto& layout : test_layouts())
    CHECK(reduce(*alone, {layout, 13, {{0, 13}}}) == reference_root(layout, 13));
}

TEST_CASE("aligned ranges send the bytes of a ring all-reduce") {
  // Larger than what recursive doubling is used for.
  const bucket_layout layout{{{dtype::f32, 65'536}, {dtype::f64, 32'768}}};
  const auto size = layout.size_bytes();
  for (std::uint32_t world_size : {2u, 4u, 8u})
    for (auto sent : sent_bytes(world_size, layout, 8, even_ownership(8, world_size)))
      CHECK(sent == std::uint64_t{2} * (world_size - 1) * size / world_size);
}

TEST_CASE("an unaligned range sends one more slice for each of its subtrees") {
  const bucket_layout layout{{{dtype::f32, 2048}}};
  const auto slice = layout.size_bytes() / 2;
  // [0, 3) is two subtrees and [3, 8) is two; each sends its partials' other half, and then its finished half.
  CHECK(sent_bytes(2, layout, 8, {{0, 3}, {3, 8}}) == std::vector<std::uint64_t>{3 * slice, 3 * slice});
  // [1, 7) is four subtrees, and nobody else has more than one.
  CHECK(sent_bytes(3, bucket_layout{{{dtype::f32, 4800}}}, 8, {{0, 1}, {1, 7}, {7, 8}}) ==
        std::vector<std::uint64_t>{25'600, 64'000, 25'600});
}

TEST_CASE("partial sums, ownership and result must be consistent") {
  const bucket_layout layout{{{dtype::f32, 100}}};
  const auto alone = make_self_communicator(generation_id{1});
  auto sums = leaf_accumulator::make(layout, 4);
  REQUIRE(sums);
  sums->begin({0, 3});
  sums->end();
  auto result = *alone->make_bucket(layout);
  auto smaller = *alone->make_bucket(bucket_layout{{{dtype::f32, 1}}});
  const auto code = [&](std::uint32_t shards, std::vector<shard_range> ownership, reduced_bucket& out,
                        std::uint64_t divisor = 1, std::size_t part = 0) {
    const auto done = alone->reduce_leaves(layout, shards, ownership, sums->partials(), out, divisor, part);
    return done ? errc::none : done.error().code;
  };
  CHECK(code(4, {{0, 4}}, *result) == errc::invalid_argument);
  CHECK(code(4, {{0, 3}}, *result) == errc::invalid_argument);
  CHECK(code(4, {{0, 2}, {2, 4}}, *result) == errc::invalid_argument);
  sums->begin({0, 4});
  sums->end();
  CHECK(code(4, {{0, 4}}, *smaller) == errc::invalid_argument);
  CHECK(code(4, {{0, 4}}, *result, 0) == errc::invalid_argument);
  CHECK(code(4, {{0, 4}}, *result, 1, 1) == errc::invalid_argument);
  CHECK(code(4, {{0, 4}}, *result) == errc::none);
}
