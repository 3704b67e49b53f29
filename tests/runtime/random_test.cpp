#include <troupe/random.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace troupe {

namespace {

using counter = std::array<std::uint32_t, 4>;
using key = std::array<std::uint32_t, 2>;

std::vector<std::uint32_t> draw(random_stream stream, std::size_t n = 16) {
  std::vector<std::uint32_t> result;
  for (std::size_t i = 0; i < n; ++i)
    result.push_back(stream());
  return result;
}

TEST_CASE("philox gives Random123's known answers") {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  CHECK(philox(counter{0, 0, 0, 0}, key{0, 0}) == counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr auto ones = 0xffffffffu;
  CHECK(philox(counter{ones, ones, ones, ones}, key{ones, ones}) ==
        counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(counter{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key{0xa4093822, 0x299f31d0}) ==
        counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a stream depends on what it is for, not on what was drawn elsewhere") {
  auto expected = draw(random_stream{7, step_id{3}, shard_id{5}});
  auto other = random_stream{7, step_id{3}, shard_id{4}};
  for (auto i = 0; i < 100; ++i)
    static_cast<void>(other());
  CHECK(draw(random_stream{7, step_id{3}, shard_id{5}}) == expected);

  auto original = random_stream{7, step_id{3}, shard_id{5}};
  for (auto i = 0; i < 5; ++i)
    CHECK(original() == expected[static_cast<std::size_t>(i)]);
  auto copy = original;
  CHECK(draw(copy, 11) == draw(original, 11));
}

TEST_CASE("streams for different purposes differ") {
  std::set<std::vector<std::uint32_t>> seen;
  auto count = std::size_t{0};
  auto add = [&](random_stream stream) {
    ++count;
    seen.insert(draw(std::move(stream)));
  };
  // One that differs in a high word only would show a word that is not used.
  for (std::uint64_t seed : {0ull, 1ull, 2ull, 1ull << 32, 1ull << 63})
    for (std::uint64_t step : {1ull, 2ull, 1ull << 32, (1ull << 32) + 1})
      for (std::uint32_t shard : {0u, 1u, 7u, 1u << 31})
        for (std::uint32_t index : {0u, 1u, 1u << 31})
          add(random_stream{seed, step_id{step}, shard_id{shard}, index});
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32})
    for (auto name : {"", "a", "b", "weights", "weightt"})
      add(random_stream{seed, name});
  CHECK(seen.size() == count);
}

TEST_CASE("the words that a seed gives are fixed") {
  // They decide users' results: a change here is a change of every run.
  CHECK(draw(random_stream{1, step_id{1}, shard_id{0}}, 5) ==
        std::vector<std::uint32_t>{0xfdcfd31b, 0x4fd2ff69, 0xdcd28d5f, 0xadb6f6a4, 0xc261e8e6});
  CHECK(draw(random_stream{1, step_id{(1ull << 40) + 3}, shard_id{5}, 2}, 3) ==
        std::vector<std::uint32_t>{0x555c7d26, 0x61d990c3, 0x2c628470});
  CHECK(draw(random_stream{1, "weights"}, 5) ==
        std::vector<std::uint32_t>{0x03850ee7, 0x8a6be30f, 0xb37a8309, 0x8b5fe4c6, 0x6687b108});
}

TEST_CASE("uniform numbers lie in [0, 1) and fill it evenly") {
  auto stream = random_stream{11, "uniform"};
  constexpr auto n = 100'000;
  auto sum = 0.0;
  auto squares = 0.0;
  auto outside = 0;
  std::array<int, 16> bins{};
  for (auto i = 0; i < n; ++i) {
    auto x = stream.uniform();
    outside += x >= 0.0 && x < 1.0 ? 0 : 1;
    sum += x;
    squares += x * x;
    ++bins[static_cast<std::size_t>(x * 16) % 16];
  }
  CHECK(outside == 0);
  // Five standard errors: sqrt(1/12/n) is 0.0009.
  CHECK(std::abs(sum / n - 0.5) < 0.005);
  CHECK(std::abs(squares / n - 1.0 / 3) < 0.005);
  for (auto bin : bins)
    CHECK(std::abs(bin - n / 16) < 400);
}

TEST_CASE("uniform numbers have 53 bits") {
  auto stream = random_stream{12, "bits"};
  auto odd = 0;
  for (auto i = 0; i < 1000; ++i)
    odd += static_cast<std::uint64_t>(std::ldexp(stream.uniform(), 53)) % 2 == 1 ? 1 : 0;
  CHECK(odd > 400);
  CHECK(odd < 600);
}

TEST_CASE("normal numbers have the moments of a normal distribution") {
  auto stream = random_stream{13, "normal"};
  constexpr auto n = 100'000;
  double moments[5] = {};
  for (auto i = 0; i < n; ++i) {
    auto x = stream.normal();
    REQUIRE(std::isfinite(x));
    auto power = 1.0;
    for (auto& each : moments) {
      each += power / n;
      power *= x;
    }
  }
  CHECK(std::abs(moments[1]) < 0.016);
  CHECK(std::abs(moments[2] - 1) < 0.023);
  CHECK(std::abs(moments[3]) < 0.065);
  CHECK(std::abs(moments[4] - 3) < 0.16);
}

} // namespace

} // namespace troupe
