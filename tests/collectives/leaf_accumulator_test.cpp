#include "leaf_values.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <bit>
#include <doctest/doctest.h>
#include <stdexcept>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

void feed(leaf_accumulator& sums, shard_range range) {
  sums.begin(range);
  for (auto shard = range.first; shard < range.last; ++shard)
    add_shard(sums.layout(), shard, sums.next(shard_id{shard}));
  sums.end();
}

} // namespace

TEST_CASE("the partial sums are those of the maximal nodes, bit for bit") {
  for (const auto& layout : test_layouts())
    for (std::uint32_t shards : {1u, 3u, 8u, 13u, 16u}) {
      auto sums = leaf_accumulator::make(layout, shards);
      REQUIRE(sums);
      for (std::uint32_t first = 0; first <= shards; first += 1 + shards / 8)
        for (std::uint32_t last = first; last <= shards; ++last) {
          feed(*sums, {first, last});
          const auto nodes = maximal_nodes(shards, {first, last});
          REQUIRE(sums->partials().size() == nodes.size());
          for (std::size_t i = 0; i < nodes.size(); ++i) {
            REQUIRE(sums->partials()[i].node == nodes[i]);
            const auto reference = reference_sum(layout, shards, nodes[i]);
            REQUIRE(std::equal(reference.begin(), reference.end(), sums->partials()[i].data));
          }
        }
    }
}

TEST_CASE("few buckets live, and none is added after the first step") {
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f32, 10}}}, 1024);
  REQUIRE(sums);
  feed(*sums, {0, 1024});
  CHECK(sums->buffers() <= 11);
  feed(*sums, {1, 1023});
  const auto most = sums->buffers();
  CHECK(most <= 21);
  feed(*sums, {1, 1023});
  feed(*sums, {0, 1024});
  CHECK(sums->buffers() == most);
}

TEST_CASE("a shard that is left out contributes plus zero") {
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f32, 16}}}, 8);
  REQUIRE(sums);
  sums->begin({0, 8});
  std::ranges::fill(sums->next(shard_id{2}), std::byte{0});
  reinterpret_cast<float*>(sums->next(shard_id{5}).data())[0] = -0.0f;
  reinterpret_cast<float*>(sums->next(shard_id{6}).data())[1] = 7.0f;
  sums->end();
  REQUIRE(sums->partials().size() == 1);
  const auto* sum = reinterpret_cast<const float*>(sums->partials()[0].data);
  CHECK(std::bit_cast<std::uint32_t>(sum[0]) == 0);
  CHECK(sum[1] == 7.0f);
}

TEST_CASE("a bucket is zeroed, whole and on a cache line each time") {
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f64, 9}}}, 4);
  REQUIRE(sums);
  for (int step = 0; step < 3; ++step) {
    sums->begin({0, 4});
    for (std::uint32_t shard = 0; shard < 4; ++shard) {
      const auto bucket = sums->next(shard_id{shard});
      CHECK(bucket.size() == 128);
      CHECK(reinterpret_cast<std::uintptr_t>(bucket.data()) % alignment_bytes == 0);
      CHECK(std::ranges::all_of(bucket, [](std::byte x) { return x == std::byte{0}; }));
      std::ranges::fill(bucket, std::byte{1});
    }
    sums->end();
  }
}

TEST_CASE("shards out of order or range, and types that cannot be summed, are refused") {
  CHECK(!leaf_accumulator::make(bucket_layout{{{dtype::bf16, 1}}}, 4));
  CHECK(!leaf_accumulator::make(bucket_layout{{{dtype::f32, 1}}}, 0));
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f32, 1}}}, 4);
  REQUIRE(sums);
  CHECK_THROWS_AS(sums->begin({2, 5}), std::logic_error);
  sums->begin({1, 3});
  CHECK_THROWS_AS((void)sums->next(shard_id{0}), std::logic_error);
  CHECK_THROWS_AS((void)sums->next(shard_id{3}), std::logic_error);
  (void)sums->next(shard_id{2});
  CHECK_THROWS_AS((void)sums->next(shard_id{1}), std::logic_error);
}
