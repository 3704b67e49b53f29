#include <troupe/actors/decisions/failure_budget.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

TEST_CASE("a run survives as many failures in a row as its budget") {
  auto budget = failure_budget{2};
  CHECK(budget.survives_failures());
  CHECK(budget.holds());
  budget.add({1}, {7});
  budget.add({2}, {7});
  CHECK(budget.holds());
  budget.add({3}, {7});
  CHECK_FALSE(budget.holds());
  CHECK(budget.describe_excess() ==
        "this is failure number 3 without a new step after step 7, more than failure.max_failures (2) allows");
}

TEST_CASE("a new step makes earlier failures forgotten, and a step that is computed again does not") {
  auto budget = failure_budget{1};
  for (std::uint32_t i = 1; i < 1000; ++i)
    budget.add({i}, {i});
  CHECK(budget.holds());
  // It starts again from a checkpoint.
  budget.add({1000}, {5});
  CHECK_FALSE(budget.holds());
}

TEST_CASE("what breaks one generation is one failure") {
  auto budget = failure_budget{1};
  for (auto worker = 0; worker < 100; ++worker)
    budget.add({4}, {7});
  CHECK(budget.holds());
  budget.add({5}, {7});
  CHECK_FALSE(budget.holds());
}

TEST_CASE("a budget goes on where another driver left it") {
  auto before = failure_budget{1};
  before.add({4}, {7});
  auto after = failure_budget{1, before.in_row()};
  after.add({4}, {7});
  CHECK(after.holds());
  after.add({5}, {7});
  CHECK_FALSE(after.holds());
}

TEST_CASE("a budget of no failures survives nothing") {
  auto budget = failure_budget{0};
  CHECK_FALSE(budget.survives_failures());
  budget.add({1}, {});
  CHECK_FALSE(budget.holds());
}

TEST_CASE("three joiners that end by themselves spend the budget, or thirty that are killed") {
  auto budget = joiner_budget{};
  for (auto i = 0; i < 2; ++i)
    budget.add(ended_by::itself);
  CHECK_FALSE(budget.is_spent());
  budget.add(ended_by::itself);
  CHECK(budget.is_spent());
  CHECK(budget.in_row() == 3);
  budget.reset();
  for (auto i = 0; i < 29; ++i)
    budget.add(ended_by::outside);
  CHECK_FALSE(budget.is_spent());
  budget.add(ended_by::outside);
  CHECK(budget.is_spent());
  CHECK(budget.in_row() == 30);
}

TEST_CASE("joiners are tried again after a pause, which doubles with every failure") {
  auto budget = joiner_budget{};
  const auto start = run_time{} + 1h;
  CHECK_FALSE(budget.end_pause(start));
  for (auto i = 0; i < 3; ++i)
    budget.add(ended_by::itself);
  CHECK(budget.pause() == 5s);
  CHECK_FALSE(budget.end_pause(start));
  CHECK_FALSE(budget.end_pause(start + 4999ms));
  CHECK(budget.is_spent());
  CHECK(budget.end_pause(start + 5s));
  CHECK_FALSE(budget.is_spent());
  CHECK_FALSE(budget.end_pause(start + 20s));
  budget.add(ended_by::outside);
  CHECK(budget.is_spent());
  CHECK(budget.pause() == 10s);
  auto now = start + 20s;
  for (auto i = 0; i < 10; ++i) {
    CHECK_FALSE(budget.end_pause(now));
    now += budget.pause();
    CHECK(budget.end_pause(now));
    budget.add(ended_by::itself);
  }
  CHECK(budget.pause() == 300s);
  budget.reset();
  CHECK(budget.pause() == 5s);
  CHECK(budget.in_row() == 0);
}
