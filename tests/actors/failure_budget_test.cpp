#include <troupe/actors/decisions/failure_budget.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

TEST_CASE("a run survives as many failures as its budget, within the window") {
  auto budget = failure_budget{2, 10s};
  const auto start = run_time{} + 1h;
  CHECK(budget.survives_failures());
  CHECK(budget.holds(start));
  budget.add(start);
  budget.add(start + 1s);
  CHECK(budget.holds(start + 1s));
  budget.add(start + 2s);
  CHECK_FALSE(budget.holds(start + 2s));
  CHECK(budget.describe_excess() == "this is failure number 3 within 10 s, more than failure.max_failures (2) allows");
  // The first is forgotten.
  CHECK(budget.holds(start + 10s + 1ms));
}

TEST_CASE("a budget of no failures survives nothing") {
  auto budget = failure_budget{0, 10s};
  CHECK_FALSE(budget.survives_failures());
  budget.add(run_time{});
  CHECK_FALSE(budget.holds(run_time{}));
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
