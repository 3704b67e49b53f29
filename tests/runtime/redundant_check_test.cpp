#include "worker/step/redundant_check.hpp"

#include <troupe/collectives/summation_tree.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

using namespace troupe;
using namespace troupe::runtime;

TEST_CASE("each shard in turn is computed by each other rank, before any is by the same again") {
  constexpr std::uint32_t shards = 8;
  for (std::uint32_t workers : {2u, 3u, 4u, 8u}) {
    auto ownership = collectives::even_ownership(shards, workers);
    std::map<std::uint32_t, std::set<std::uint32_t>> others;
    for (std::uint64_t turn = 1; turn <= shards * (workers - 1); ++turn) {
      auto found = choose_redundant_check(step_id{5 * turn}, 5, shards, ownership);
      REQUIRE(found);
      CHECK(ownership[found->owner.value].contains(found->shard));
      CHECK(found->other != found->owner);
      REQUIRE(found->other.value < workers);
      CHECK(others[found->shard.value].insert(found->other.value).second);
    }
    CHECK(others.size() == shards);
  }
}

TEST_CASE("one worker computes the shard twice itself, and steps between are left alone") {
  auto alone = collectives::even_ownership(4, 1);
  CHECK(choose_redundant_check(step_id{3}, 3, 4, alone) == redundant_check{shard_id{0}, rank_id{0}, rank_id{0}});
  CHECK(choose_redundant_check(step_id{6}, 3, 4, alone) == redundant_check{shard_id{1}, rank_id{0}, rank_id{0}});
  CHECK(!choose_redundant_check(step_id{4}, 3, 4, alone));
  CHECK(!choose_redundant_check(step_id{4}, 0, 4, alone));
}

TEST_CASE("a gradient is compared by the tensors that are named, and what lies between") {
  auto names = [](std::vector<gradient_tensor> named, std::uint64_t elements) {
    std::string text;
    std::uint64_t next = 0;
    for (const auto& part : parts_of_gradient(std::move(named), elements)) {
      CHECK(part.first == next);
      CHECK(part.elements > 0);
      next = part.first + part.elements;
      text += part.name + "; ";
    }
    CHECK(next == elements);
    return text;
  };
  CHECK(names({}, 10) == "elements 0 to 9 of the gradient; ");
  CHECK(names({}, 0).empty());
  CHECK(names({{"b", 4, 6}, {"a", 0, 4}}, 10) == "the gradient of 'a'; the gradient of 'b'; ");
  CHECK(names({{"a", 1, 2}, {"b", 4, 3}}, 10) ==
        "elements 0 to 0 of the gradient; the gradient of 'a'; elements 3 to 3 of the gradient; the gradient of 'b'; "
        "elements 7 to 9 of the gradient; ");
  // What overlaps or reaches beyond the end is cut.
  CHECK(names({{"a", 0, 5}, {"b", 3, 4}, {"c", 6, 100}, {"d", 50, 1}}, 8) ==
        "the gradient of 'a'; the gradient of 'b'; the gradient of 'c'; ");
}

TEST_CASE("differences are of bits, and counted") {
  auto nan = std::numeric_limits<float>::quiet_NaN();
  auto difference = [](std::vector<float> a, std::vector<float> b) {
    return difference_of(std::span<const float>{a}, std::span<const float>{b});
  };
  CHECK(difference({1, nan, 3}, {1, nan, 3}) == part_difference{3, 0, 0});
  CHECK(difference({1, 2, 3, 4}, {1, 2.5f, 3, 2}) == part_difference{4, 2, 2});
  CHECK(difference({0.0f}, {-0.0f}) == part_difference{1, 1, 0});
  auto lost = difference({nan, 1}, {1, 2});
  CHECK(lost.different == 2);
  CHECK(std::isnan(lost.largest));
}

TEST_CASE("a disagreement is told with step, shard, ranks, tensors and what can be meant") {
  auto names = std::vector<std::string>{"the gradient of 'w'", "b", "c", "d", "e", "f", "g"};
  auto text = describe_disagreement(step_id{30}, {shard_id{3}, rank_id{1}, rank_id{0}}, names, {64, 2, 0.5},
                                    "libtorch: threads 2");
  CHECK(text.find("step 30, shard 3: rank 1, whose it is, and rank 0 have computed it") == 0);
  CHECK(text.find("differ in the gradient of 'w' (2 of 64 numbers, by 0.5 at most), b, c, d, e and 2 more.") !=
        std::string::npos);
  CHECK(text.find("on different workers: code that depends on the rank") != std::string::npos);
  CHECK(text.ends_with("; libtorch: threads 2"));
  // The step that it happened in, not the one before.
  CHECK(text.find("troupe replay RUN --step 30 --debug") != std::string::npos);
  auto alone = describe_disagreement(step_id{1}, {shard_id{0}, rank_id{0}, rank_id{0}}, {{"w"}}, {1, 1, 1}, "");
  CHECK(alone.find("rank 0 has computed it twice") != std::string::npos);
  CHECK(alone.find("differently each time") != std::string::npos);
  CHECK(alone.find("troupe replay RUN --step 1 --debug") != std::string::npos);
}
