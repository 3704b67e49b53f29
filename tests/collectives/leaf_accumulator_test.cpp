#include "leaf_values.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <doctest/doctest.h>
#include <memory_resource>
#include <random>
#include <stdexcept>
#include <utility>

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

/// A copy of all partial sums.
std::vector<std::vector<std::byte>> copy_of(const leaf_accumulator& sums) {
  std::vector<std::vector<std::byte>> result;
  for (const auto& x : sums.partials())
    result.emplace_back(x.data, x.data + sums.layout().sums().size_bytes());
  return result;
}

/// Cuts [0, size) on lines at random, in random order.
std::vector<byte_range> random_pieces(std::uint64_t size, std::mt19937& random) {
  std::vector<std::uint64_t> cuts = {0, size};
  for (auto n = random() % 12; n != 0; --n)
    cuts.push_back(random() % (size / alignment_bytes + 1) * alignment_bytes);
  std::ranges::sort(cuts);
  std::vector<byte_range> result;
  for (std::size_t i = 1; i < cuts.size(); ++i)
    result.push_back({cuts[i - 1], cuts[i]});
  std::ranges::shuffle(result, random);
  return result;
}

/// Counts allocations.
class counting_memory : public std::pmr::memory_resource {
 public:
  std::vector<std::pair<const std::byte*, std::size_t>> blocks;
  std::size_t live = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    auto* result = std::pmr::new_delete_resource()->allocate(size, alignment);
    blocks.push_back({static_cast<const std::byte*>(result), size});
    ++live;
    return result;
  }
  void do_deallocate(void* at, std::size_t size, std::size_t alignment) override {
    --live;
    std::pmr::new_delete_resource()->deallocate(at, size, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// The result for 16-bit floats if each addition were rounded.
template <class T>
T sum_rounded_each_time(std::uint32_t shards, tree_node node, std::uint64_t element) {
  if (node.level == 0)
    return contribution<T>(node.index, element);
  const auto left = sum_rounded_each_time<T>(shards, {node.level - 1, 2 * node.index}, element);
  const auto right = sum_rounded_each_time<T>(shards, {node.level - 1, 2 * node.index + 1}, element);
  return T::nearest(left.value() + right.value());
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

TEST_CASE("few buckets exist, and none is added after the first step") {
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

TEST_CASE("a skipped shard contributes plus zero") {
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

TEST_CASE("skipped shards act like plus zero, whatever the buckets held before") {
  for (const auto& layout : test_layouts())
    for (std::uint32_t mask = 0; mask < 32; ++mask) {
      auto all = leaf_accumulator::make(layout, 5);
      auto some = leaf_accumulator::make(layout, 5);
      REQUIRE(all);
      REQUIRE(some);
      feed(*some, {0, 5});
      feed(*some, {1, 5});
      all->begin({0, 5});
      some->begin({0, 5});
      for (std::uint32_t shard = 0; shard < 5; ++shard) {
        const auto bucket = all->next(shard_id{shard});
        if ((mask >> shard & 1) != 0) {
          add_shard(layout, shard, bucket);
          std::ranges::copy(bucket, some->next(shard_id{shard}).begin());
        }
      }
      all->end();
      some->end();
      REQUIRE(copy_of(*some) == copy_of(*all));
    }
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

TEST_CASE("shards out of order or range, and types that cannot be summed, are rejected") {
  CHECK(!leaf_accumulator::make(bucket_layout{{{dtype::i16, 1}}}, 4));
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

TEST_CASE("finished in any pieces and any order, the sums are those of the whole") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  auto layouts = test_layouts();
  // Longer than the pieces in which a contribution is added.
  layouts.push_back(bucket_layout{{{dtype::f32, 5000}, {dtype::f16, 9000}}});
  for (const auto& layout : layouts)
    for (std::uint32_t shards : {1u, 3u, 8u, 13u, 16u}) {
      auto whole = leaf_accumulator::make(layout, shards);
      auto pieces = leaf_accumulator::make(layout, shards);
      REQUIRE(whole);
      REQUIRE(pieces);
      for (int i = 0; i < 3; ++i) {
        auto range = shard_range{static_cast<std::uint32_t>(random() % (shards + 1)),
                                 static_cast<std::uint32_t>(random() % (shards + 1))};
        if (range.first > range.last)
          std::swap(range.first, range.last);
        if (i == 0)
          range = {0, shards};
        // Finish up to here; leave out the rest.
        const auto stop = range.first + (i == 1 ? (range.last - range.first) / 2 : range.last - range.first);
        INFO("shards ", shards, ", range [", range.first, ", ", range.last, "), contributed to ", stop);
        whole->begin(range);
        pieces->begin(range);
        std::span<std::byte> last;
        std::vector<std::byte> wanted(layout.size_bytes());
        for (auto shard = range.first; shard < stop; ++shard) {
          add_shard(layout, shard, whole->next(shard_id{shard}));
          last = pieces->next(shard_id{shard});
          std::ranges::fill(wanted, std::byte{0});
          add_shard(layout, shard, wanted);
          if (shard + 1 < stop)
            std::ranges::copy(wanted, last.begin());
        }
        whole->end();
        pieces->close();
        const auto addresses = std::vector<leaf_partial>(pieces->partials().begin(), pieces->partials().end());
        const auto cuts = random_pieces(layout.size_bytes(), random);
        const auto by_hand = i == 2 ? random() % (cuts.size() + 1) : cuts.size();
        // Unfinished parts are not read yet and may still change.
        std::ranges::fill(last, std::byte{0x5a});
        for (std::size_t k = 0; k < cuts.size(); ++k) {
          if (!last.empty())
            std::memcpy(last.data() + cuts[k].first, wanted.data() + cuts[k].first, cuts[k].size_bytes());
          if (k < by_hand)
            pieces->finish(cuts[k]);
        }
        pieces->end();
        REQUIRE(pieces->partials().size() == addresses.size());
        for (std::size_t k = 0; k < addresses.size(); ++k) {
          REQUIRE(pieces->partials()[k].data == addresses[k].data);
          REQUIRE(pieces->partials()[k].node == whole->partials()[k].node);
        }
        REQUIRE(copy_of(*pieces) == copy_of(*whole));
      }
    }
}

TEST_CASE("a part that is finished is complete before the others are") {
  const bucket_layout layout{{{dtype::f16, 64}}};
  auto sums = leaf_accumulator::make(layout, 2);
  REQUIRE(sums);
  sums->begin({0, 2});
  add_shard(layout, 0, sums->next(shard_id{0}));
  add_shard(layout, 1, sums->next(shard_id{1}));
  sums->close();
  sums->finish({64, 128});
  const auto reference = reference_sum(layout, 2, {1, 0});
  REQUIRE(sums->partials().size() == 1);
  CHECK(std::equal(reference.begin() + 128, reference.end(), sums->partials()[0].data + 128));
  sums->finish({0, 64});
  CHECK(std::equal(reference.begin(), reference.end(), sums->partials()[0].data));
}

TEST_CASE_TEMPLATE("the test values distinguish rounding once from rounding at each addition", T, f16, bf16) {
  const bucket_layout layout{{{std::is_same_v<T, f16> ? dtype::f16 : dtype::bf16, 320}}};
  const auto root = reference_root(layout, 8);
  std::size_t different = 0;
  std::vector<T> once(320);
  std::memcpy(once.data(), root.data(), 640);
  for (std::size_t i = 0; i < 320; ++i)
    different += sum_rounded_each_time<T>(8, {3, 0}, i).bits == once[i].bits ? 0 : 1;
  CHECK(different >= 100);
  CHECK(sum_rounded_each_time<T>(8, {3, 0}, 7).bits != once[7].bits);
  // In f16, elements 6 overflow; their mean does not if it is taken before rounding.
  const auto mean = reference_root(layout, 8, 8);
  std::memcpy(once.data(), mean.data(), 640);
  CHECK(sum_rounded_each_time<T>(8, {3, 0}, 6).bits == T::infinity);
  CHECK(once[6].bits == (std::is_same_v<T, f16> ? T::largest : T::infinity));
}

TEST_CASE("sums are allocated from the given memory and freed there") {
  for (const auto& layout : {bucket_layout{{{dtype::f32, 100}}}, bucket_layout{{{dtype::bf16, 100}}}}) {
    counting_memory memory;
    {
      auto sums = leaf_accumulator::make(layout, 8, memory);
      REQUIRE(sums);
      feed(*sums, {1, 8});
      const auto after_one = memory.blocks.size();
      CHECK(after_one == sums->buffers());
      for (const auto& x : sums->partials())
        CHECK(std::ranges::any_of(memory.blocks, [&](auto block) {
                return block.first == x.data && block.second == 512;
              }) == (layout.segments()[0].type == dtype::bf16));
      for (const auto& x : sums->partials())
        CHECK(std::ranges::any_of(memory.blocks, [&](auto block) { return block.first == x.data; }));
      feed(*sums, {1, 8});
      CHECK(memory.blocks.size() == after_one);
    }
    CHECK(memory.live == 0);
  }
}

TEST_CASE("without 16-bit floats a contribution is written in place of its sum") {
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f32, 100}}}, 1);
  REQUIRE(sums);
  sums->begin({0, 1});
  const auto* bucket = sums->next(shard_id{0}).data();
  sums->end();
  CHECK(sums->partials()[0].data == bucket);
}

TEST_CASE("steps ended out of order are rejected") {
  auto sums = leaf_accumulator::make(bucket_layout{{{dtype::f32, 64}}}, 4);
  REQUIRE(sums);
  CHECK_THROWS_AS(sums->finish({0, 64}), std::logic_error);
  sums->begin({0, 4});
  (void)sums->next(shard_id{1});
  CHECK_THROWS_AS(sums->finish({0, 64}), std::logic_error);
  sums->close();
  CHECK_THROWS_AS(sums->close(), std::logic_error);
  CHECK_THROWS_WITH_AS((void)sums->next(shard_id{2}), doctest::Contains("closed"), std::logic_error);
  CHECK_THROWS_AS(sums->finish({32, 64}), std::logic_error);
  CHECK_THROWS_AS(sums->finish({0, 63}), std::logic_error);
  CHECK_THROWS_AS(sums->finish({192, 320}), std::logic_error);
  CHECK_THROWS_AS(sums->finish({128, 64}), std::logic_error);
  sums->finish({64, 128});
  CHECK_THROWS_AS(sums->finish({64, 128}), std::logic_error);
  CHECK_THROWS_AS(sums->finish({0, 128}), std::logic_error);
  CHECK_THROWS_AS(sums->finish({0, 256}), std::logic_error);
  sums->finish({192, 256});
  CHECK_THROWS_AS(sums->finish({128, 256}), std::logic_error);
  sums->finish({128, 192});
  CHECK_THROWS_AS(sums->finish({128, 192}), std::logic_error);
  sums->end();
  CHECK_THROWS_AS(sums->finish({0, 64}), std::logic_error);
  CHECK_THROWS_AS((void)sums->next(shard_id{3}), std::logic_error);
  sums->begin({0, 4});
  (void)sums->next(shard_id{1});
  sums->end();
  CHECK(sums->partials().size() == 1);
}
