#include <troupe/data_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace troupe {

namespace {

std::vector<std::uint64_t> values(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
  auto permutation = keyed_permutation{size, seed, epoch};
  std::vector<std::uint64_t> result;
  for (std::uint64_t i = 0; i < size; ++i)
    result.push_back(permutation(i));
  return result;
}

/// The samples of a whole step, shard by shard.
std::vector<std::uint64_t> step_samples(const data_order& order, std::uint32_t shards, std::uint64_t step) {
  std::vector<std::uint64_t> result;
  std::vector<std::uint64_t> one;
  for (std::uint32_t v = 0; v < shards; ++v) {
    order.samples_of(step_id{step}, shard_id{v}, one);
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

bool is_permutation_of_all(std::vector<std::uint64_t> x) {
  std::ranges::sort(x);
  for (std::uint64_t i = 0; i < x.size(); ++i)
    if (x[i] != i)
      return false;
  return true;
}

TEST_CASE("a keyed permutation is a bijection of any size") {
  for (std::uint64_t size : {1u, 2u, 3u, 5u, 16u, 1000u, 65537u})
    for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      CAPTURE(size);
      CAPTURE(seed);
      auto image = values(size, seed, 2);
      REQUIRE(image.size() == size);
      CHECK(is_permutation_of_all(std::move(image)));
    }
}

TEST_CASE("a keyed permutation stays inside sizes that cannot be listed") {
  for (auto size : {(std::uint64_t{1} << 40) + 1, (std::uint64_t{1} << 62) + 12345, ~std::uint64_t{0}}) {
    auto permutation = keyed_permutation{size, 3, 4};
    std::vector<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      auto x = permutation(size - 1 - i);
      REQUIRE(x < size);
      seen.push_back(x);
    }
    std::ranges::sort(seen);
    CHECK(std::ranges::adjacent_find(seen) == seen.end());
  }
}

TEST_CASE("permutations differ by seed and by epoch") {
  for (std::uint64_t size : {16u, 1000u, 65537u}) {
    auto first = values(size, 1, 0);
    CHECK(first != values(size, 2, 0));
    CHECK(first != values(size, 1, 1));
    // Seed and epoch are not exchangeable.
    CHECK(values(size, 1, 2) != values(size, 2, 1));
    CHECK(first == values(size, 1, 0));
  }
}

TEST_CASE("the permutation of a seed is fixed") {
  // It decides users' results: a change here is a change of every run.
  CHECK(values(10, 1, 0) == std::vector<std::uint64_t>{1, 6, 2, 3, 8, 9, 0, 7, 4, 5});
  CHECK(values(10, 1, 1) == std::vector<std::uint64_t>{9, 1, 7, 0, 5, 3, 8, 2, 4, 6});
  auto large = keyed_permutation{1'000'003, 42, 7};
  CHECK(std::vector<std::uint64_t>{large(0), large(1), large(500'000), large(1'000'002)} ==
        std::vector<std::uint64_t>{925690, 95926, 9143, 46142});
}

TEST_CASE("the samples of a step are fixed") {
  auto order = data_order{10, 7, 3, 1};
  std::vector<std::uint64_t> samples;
  order.samples_of(step_id{2}, shard_id{1}, samples);
  // Positions 9 and 10 of the run: the last of the first epoch, and the first of the second.
  CHECK(samples == std::vector<std::uint64_t>{values(10, 1, 0)[9], values(10, 1, 1)[0]});
}

TEST_CASE("every epoch sees each sample exactly once, whatever the batch and the shards") {
  for (std::uint64_t n : {1u, 7u, 60u, 101u})
    for (std::uint64_t batch : {1u, 5u, 32u, 60u, 250u})
      for (std::uint32_t shards : {1u, 8u, 13u, 64u}) {
        CAPTURE(n);
        CAPTURE(batch);
        CAPTURE(shards);
        auto order = data_order{n, batch, shards, 9};
        constexpr std::uint64_t epochs = 3;
        std::vector<std::uint64_t> all;
        for (std::uint64_t step = 1; all.size() < epochs * n; ++step) {
          REQUIRE(order.epoch_of(step_id{step}) == all.size() / n);
          auto samples = step_samples(order, shards, step);
          REQUIRE(samples.size() == batch);
          all.insert(all.end(), samples.begin(), samples.end());
        }
        for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
          auto first = all.begin() + static_cast<std::ptrdiff_t>(epoch * n);
          auto pass = std::vector<std::uint64_t>{first, first + static_cast<std::ptrdiff_t>(n)};
          CHECK(pass == values(n, 9, epoch));
        }
      }
}

TEST_CASE("the shards of a step are a partition of its batch, with some empty when there are more of them") {
  for (std::uint64_t batch : {1u, 5u, 64u, 100u}) {
    auto whole = step_samples(data_order{1000, batch, 1, 4}, 1, 17);
    for (std::uint32_t shards : {2u, 8u, 13u, 100u}) {
      CAPTURE(batch);
      CAPTURE(shards);
      auto order = data_order{1000, batch, shards, 4};
      CHECK(step_samples(order, shards, 17) == whole);
      std::vector<std::uint64_t> one{99, 98};
      std::uint64_t smallest = batch;
      std::uint64_t largest = 0;
      for (std::uint32_t v = 0; v < shards; ++v) {
        order.samples_of(step_id{17}, shard_id{v}, one);
        CHECK(one.size() == (v + 1) * batch / shards - v * batch / shards);
        smallest = std::min<std::uint64_t>(smallest, one.size());
        largest = std::max<std::uint64_t>(largest, one.size());
      }
      CHECK(largest - smallest <= 1);
      CHECK((smallest == 0) == (shards > batch));
    }
  }
}

TEST_CASE("batches of any size are cut without overflow") {
  constexpr auto batch = std::uint64_t{1} << 40;
  constexpr std::uint32_t shards = 1u << 31;
  std::vector<std::uint64_t> one;
  data_order{100, batch, shards, 1}.samples_of(step_id{1}, shard_id{shards - 1}, one);
  CHECK(one.size() == batch / shards);
}

TEST_CASE("a permutation spreads the data evenly") {
  constexpr std::uint64_t n = 65537;
  constexpr std::size_t bins = 16;
  auto image = values(n, 5, 3);
  std::array<std::array<double, bins>, bins> seen{};
  auto fixed = 0;
  auto neighbours = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    seen[i * bins / n][image[i] * bins / n] += 1;
    fixed += image[i] == i ? 1 : 0;
    neighbours += i > 0 && image[i] == image[i - 1] + 1 ? 1 : 0;
  }
  // One of each is expected of a random permutation.
  CHECK(fixed < 10);
  CHECK(neighbours < 10);
  auto chi = 0.0;
  constexpr auto expected = static_cast<double>(n) / (bins * bins);
  for (const auto& row : seen)
    for (auto count : row)
      chi += (count - expected) * (count - expected) / expected;
  // 225 degrees of freedom, standard deviation 21.
  CHECK(chi > 225 - 110);
  CHECK(chi < 225 + 110);
}

std::vector<std::uint64_t> epoch(std::uint64_t samples, const sample_order& order, std::uint64_t seed,
                                 std::uint64_t number) {
  auto at = epoch_order{samples, order, seed, number};
  std::vector<std::uint64_t> result;
  for (std::uint64_t i = 0; i < samples; ++i)
    result.push_back(at(i));
  return result;
}

TEST_CASE("every order has each sample once an epoch, whatever the sizes of blocks and windows") {
  for (std::uint64_t samples : {1u, 2u, 7u, 64u, 1000u, 1001u})
    for (std::uint64_t block : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{7}, std::uint64_t{100},
                                std::uint64_t{5000}, ~std::uint64_t{0}})
      for (std::uint64_t window : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1000}, ~std::uint64_t{0}})
        for (std::uint64_t number : {0u, 1u, 2u}) {
          CAPTURE(samples);
          CAPTURE(block);
          CAPTURE(window);
          REQUIRE(is_permutation_of_all(epoch(samples, shuffle::blocks{block, window}, 3, number)));
        }
  CHECK(is_permutation_of_all(epoch(1000, shuffle::none{}, 3, 1)));
  CHECK(epoch(1000, shuffle::none{}, 3, 1).front() == 0);
  CHECK(epoch(1000, shuffle::uniform{}, 3, 1) == values(1000, 3, 1));
}

TEST_CASE("an order in blocks reads few blocks at a time, mixes them, and differs by epoch and seed") {
  const auto how = shuffle::blocks{100, 4};
  const auto first = epoch(10'050, how, 1, 0);
  CHECK(first != epoch(10'050, how, 1, 1));
  CHECK(first != epoch(10'050, how, 2, 0));
  auto blocks_of_windows = std::vector<std::uint64_t>{};
  for (std::uint64_t begin = 0; begin < first.size(); begin += 400) {
    const auto end = std::min<std::uint64_t>(begin + 400, first.size());
    std::vector<std::uint64_t> blocks;
    for (auto i = begin; i < end; ++i)
      blocks.push_back(first[i] / 100);
    // Mixed: neighbours are seldom of one block.
    auto same = 0;
    for (std::size_t i = 1; i < blocks.size(); ++i)
      same += blocks[i] == blocks[i - 1] ? 1 : 0;
    CHECK(same < 200);
    std::ranges::sort(blocks);
    const auto unequal = std::ranges::unique(blocks);
    blocks.erase(unequal.begin(), unequal.end());
    // Of the two at the ends of a window that the short block moves, each is a part.
    CHECK(blocks.size() <= 6);
    blocks_of_windows.insert(blocks_of_windows.end(), blocks.begin(), blocks.end());
  }
  CHECK_FALSE(std::ranges::is_sorted(blocks_of_windows));
}

TEST_CASE("the short block is not always at the end") {
  auto places = std::vector<std::size_t>{};
  for (std::uint64_t number = 0; number < 20; ++number) {
    const auto order = epoch(1005, shuffle::blocks{100, 1}, 1, number);
    places.push_back(static_cast<std::size_t>(std::ranges::find(order, std::uint64_t{1002}) - order.begin()) / 105);
  }
  std::ranges::sort(places);
  CHECK(std::ranges::unique(places).size() < 15);
}

TEST_CASE("the orders of a seed are fixed") {
  CHECK(epoch(10, shuffle::blocks{3, 2}, 1, 0) == std::vector<std::uint64_t>{9, 6, 0, 7, 1, 8, 4, 3, 2, 5});
  CHECK(describe(shuffle::blocks{3, 2}) == "blocks of 3, windows of 2 (1)");
  CHECK(describe(shuffle::none{}) == "not shuffled (1)");
  CHECK(describe(shuffle::uniform{}).empty());
}

TEST_CASE("steps go through an order in blocks as through any other, for every number of shards") {
  const auto how = sample_order{shuffle::blocks{8, 3}};
  const auto one = data_order{101, 10, 1, 5, how};
  const auto many = data_order{101, 10, 7, 5, how};
  std::vector<std::uint64_t> all;
  for (std::uint64_t step = 1; step <= 30; ++step) {
    const auto samples = step_samples(one, 1, step);
    CHECK(samples == step_samples(many, 7, step));
    all.insert(all.end(), samples.begin(), samples.end());
  }
  CHECK(is_permutation_of_all({all.begin(), all.begin() + 101}));
  CHECK(is_permutation_of_all({all.begin() + 101, all.begin() + 202}));
}

} // namespace

} // namespace troupe
