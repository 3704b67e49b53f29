#include <troupe/actors/decisions/accepted_plans.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

run_plan plan_of(std::uint32_t loop, std::uint64_t steps = 10) {
  run_plan result;
  result.loop = loop;
  result.steps = steps;
  result.batch_samples = 64;
  result.state_bytes = 100 + loop;
  return result;
}

} // namespace

TEST_CASE("each loop has its plan; one whose answers were lost is accepted again") {
  accepted_plans plans;
  CHECK(plans.empty());
  CHECK(plans.state_bytes() == 0);
  CHECK_FALSE(plans.has_own_loop());
  CHECK_FALSE(plans.add(plan_of(0)));
  CHECK(plans.is_current(0));
  CHECK_FALSE(plans.add(plan_of(0, 11)));
  REQUIRE(plans.all().size() == 1);
  CHECK(plans.of_loop(0)->steps == 11);
  CHECK(plans.of_loop(1) == nullptr);
  CHECK(plans.add(plan_of(1)));
  CHECK(plans.is_behind(0));
  CHECK(plans.is_current(1));
  CHECK_FALSE(plans.is_behind(1));
  CHECK(plans.current_loop() == 1);
  CHECK(plans.state_bytes() == 101);
}

TEST_CASE("a plan without batches is that of a custom loop") {
  accepted_plans plans;
  auto plan = plan_of(0);
  plan.batch_samples = 0;
  CHECK_FALSE(plans.add(plan));
  CHECK(plans.has_own_loop());
}

TEST_CASE("the plans of the members are compared, with the names of two that differ") {
  worker_table workers;
  for (std::uint32_t i = 0; i < 4; ++i) {
    workers.add({{i}, {i}, 0, i, 4}, {}, {});
    if (i > 0)
      workers.find({i})->stands = standing::active{plan_of(0), {}, {}};
  }
  CHECK_FALSE(find_plan_difference(workers));
  workers.find({3})->as<standing::active>()->plan->steps = 11;
  const auto wrong = find_plan_difference(workers);
  REQUIRE(wrong);
  CHECK(wrong->message.find("steps: 10 on worker 1 (rank 1), 11 on worker 3 (rank 3)") != std::string::npos);
}
