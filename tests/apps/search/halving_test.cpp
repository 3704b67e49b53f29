#include <search/halving.hpp>
#include <search/record.hpp>

#include <scratch_directory.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace search;

namespace {

constexpr auto not_a_number = std::numeric_limits<double>::quiet_NaN();
using rungs = std::vector<std::uint64_t>;
using trials = std::vector<std::size_t>;

/// The loss of a trial at a step: those that are behind early may be ahead later.
double loss_of(std::size_t trial, std::uint64_t steps) {
  return static_cast<double>((trial * 7 + steps * 3) % 11) + 0.25;
}

/// All decisions of a search whose trials report in an order drawn with this seed.
std::vector<rung_decision> decide_all(std::size_t count, std::uint32_t seed) {
  auto all = successive_halving{count, {10, 20, 40, 80}, 2};
  auto random = std::mt19937{seed};
  std::vector<rung_decision> result;
  while (!all.is_over()) {
    auto due = all.due();
    std::ranges::shuffle(due, random);
    for (auto trial : due)
      if (auto decision = all.record(trial, loss_of(trial, all.rung())).value())
        result.push_back(*decision);
  }
  return result;
}

search_plan small_plan() {
  search_plan result;
  result.learning_rates = {0.1, 0.01, 1e-3};
  result.rungs = {5, 10};
  result.config = {{"batch", 64}};
  return result;
}

} // namespace

TEST_CASE("rungs grow by the factor and end at the last step") {
  CHECK(make_rungs(10, 80, 2).value() == rungs{10, 20, 40, 80});
  CHECK(make_rungs(10, 70, 2).value() == rungs{10, 20, 40, 70});
  CHECK(make_rungs(5, 5, 2).value() == rungs{5});
  CHECK(make_rungs(1, 30, 3).value() == rungs{1, 3, 9, 27, 30});
  CHECK(make_rungs(1, std::numeric_limits<std::uint64_t>::max(), 2).value().size() == 65);
  CHECK(make_rungs(1, 10, 1).error().code == troupe::errc::invalid_argument);
  CHECK(make_rungs(0, 10, 2).error().code == troupe::errc::invalid_argument);
  CHECK(make_rungs(11, 10, 2).error().code == troupe::errc::invalid_argument);
}

TEST_CASE("the better half goes on, and of equal losses that of the first trial") {
  auto all = successive_halving{5, {10, 20}, 2};
  CHECK(all.due() == trials{0, 1, 2, 3, 4});
  CHECK(all.rung() == 10);
  CHECK_FALSE(all.record(4, 1.0).value());
  CHECK_FALSE(all.record(1, 3.0).value());
  CHECK_FALSE(all.record(0, 2.0).value());
  CHECK_FALSE(all.record(3, 2.0).value());
  CHECK(all.due() == trials{2});
  CHECK(all.record(2, 2.0).value() == rung_decision{10, {4, 0, 2}, {3, 1}});
  CHECK(all.rung() == 20);
  CHECK(all.due() == trials{0, 2, 4});
  CHECK_FALSE(all.winner());
  CHECK_FALSE(all.record(0, 0.5).value());
  CHECK_FALSE(all.record(2, 0.5).value());
  CHECK(all.record(4, 0.75).value() == rung_decision{20, {0}, {2, 4}});
  CHECK(all.is_over());
  CHECK(all.winner() == 0);
  CHECK(all.due().empty());
}

TEST_CASE("a trial whose loss is not finite goes no further, and a search without any other has no winner") {
  auto all = successive_halving{4, {1, 2}, 2};
  CHECK_FALSE(all.record(0, not_a_number).value());
  CHECK_FALSE(all.record(1, std::numeric_limits<double>::infinity()).value());
  CHECK_FALSE(all.record(2, not_a_number).value());
  CHECK(all.record(3, 9.0).value() == rung_decision{1, {3}, {0, 1, 2}});
  CHECK(all.record(3, not_a_number).value() == rung_decision{2, {}, {3}});
  CHECK(all.is_over());
  CHECK_FALSE(all.winner());
}

TEST_CASE("a trial that is not due is refused") {
  auto all = successive_halving{3, {1, 2}, 3};
  CHECK(all.record(0, 1.0));
  CHECK(all.record(0, 1.0).error().code == troupe::errc::invalid_argument);
  CHECK(all.record(7, 1.0).error().code == troupe::errc::invalid_argument);
}

TEST_CASE("the decisions do not depend on the order in which trials come to a rung") {
  for (std::size_t count : {1u, 2u, 3u, 8u, 13u}) {
    const auto expected = decide_all(count, 0);
    REQUIRE(expected.size() == 4);
    CHECK(expected.back().kept.size() == 1);
    for (std::uint32_t seed = 1; seed < 50; ++seed)
      CHECK(decide_all(count, seed) == expected);
  }
}

TEST_CASE("a search goes on from its file with the same decisions, and ends with them") {
  troupe::testing::scratch_directory scratch;
  const auto directory = scratch.path() / "a" / "search";
  {
    auto record = search_record::open(directory, small_plan()).value();
    CHECK_FALSE(record.add({1, 5, 0.1 + 0.2, "s1", "c1"}).value());
    CHECK_FALSE(record.add({0, 5, {}, "s0", "c0"}).value());
  }
  {
    auto record = search_record::open(directory, small_plan()).value();
    CHECK(record.halving().due() == trials{2});
    CHECK(record.scores()[0] == trial_score{1, 5, 0.1 + 0.2, "s1", "c1"});
    CHECK(record.scores()[1] == trial_score{0, 5, {}, "s0", "c0"});
    CHECK(record.add({2, 5, 0.3, "s2", "c2"}).value() == rung_decision{5, {2, 1}, {0}});
    CHECK_FALSE(record.add({2, 10, 0.3, "t2", "d2"}).value());
    CHECK(record.add({1, 10, 0.2, "t1", "d1"}).value() == rung_decision{10, {1}, {2}});
  }
  const auto record = search_record::open(directory, small_plan()).value();
  CHECK(record.halving().winner() == 1);
  CHECK(record.best() == trial_score{1, 10, 0.2, "t1", "d1"});
}

TEST_CASE("a search with other settings, and a file that is none, are refused by name") {
  troupe::testing::scratch_directory scratch;
  REQUIRE(search_record::open(scratch.path(), small_plan()));
  auto other = small_plan();
  other.learning_rates.push_back(0.5);
  const auto refused = search_record::open(scratch.path(), other);
  CHECK(refused.error().code == troupe::errc::mismatch);
  CHECK(refused.error().message.find("--name") != std::string::npos);
  for (const auto* text : {"", "{", "{}", R"({"plan": 1, "scores": 2})", "[]"}) {
    std::ofstream{scratch.path() / "search.json"} << text;
    const auto damaged = search_record::open(scratch.path(), small_plan());
    REQUIRE_FALSE(damaged);
    CHECK(damaged.error().message.find("search.json") != std::string::npos);
  }
}
