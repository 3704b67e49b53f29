#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("when nobody is left, the run starts again: another attempt, in which the dead have no say") {
  auto group = in_loop(2);
  group.on_applied({0}, {7});
  static_cast<void>(group.on_ended(killed(1)));
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  CHECK(group.attempt() == 2);
  CHECK(group.generation() == generation_id{2});
  CHECK(group.furthest() == step_id{7});
  CHECK(group.starting());
  CHECK(group.occupied().empty());
  CHECK(group.accepted().empty());
  group.on_restarted({{{2}, {0}, 0, 0, 1}, {{3}, {1}, 1, 0, 1}}, resumed_plan{64, "digits", "w f32 [3]", "v3"}, {5});
  CHECK(group.knows({2}));
  CHECK_FALSE(group.knows({0}));
  CHECK(group.on_ready(ready_of(0)).empty());
  CHECK(group.on_ended(killed(0)).empty());
  CHECK(find<refuse_report>(group.on_report(elsewhere(0, 7))));
  CHECK(group.on_finished(finished(0)).empty());
  begin(group, {2, 3}, 2);
  CHECK(group.failures().size() == 2);
  // And it is an ordinary run again, whose numbers go on.
  static_cast<void>(group.on_ended(killed(3)));
  const auto formed = gather(group, {2}, 6, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->record.attempt == 2);
  CHECK(find<form_generation>(formed)->record.generation == generation_id{3});
  CHECK(group.failures().back().generation == generation_id{2});
}

TEST_CASE("the plans of a new attempt are compared with the checkpoint that it goes on from") {
  auto group = in_loop(1);
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, resumed_plan{65, "digits", "w f32 [3]", "v3"}, {5});
  static_cast<void>(group.on_ready(ready_of(1)));
  CHECK(find<refuse_plans>(group.on_plan(plan_of(1, 2))));
}

TEST_CASE("attempts that crash before anything is done end the run; getting on, or a kill from outside, begins anew") {
  struct how {
    bool gets_on;
    bool crashes;
  };
  for (const auto& each : {how{false, true}, how{true, true}, how{false, false}}) {
    const auto gets_on = each.gets_on;
    const auto crashes = each.crashes;
    CAPTURE(gets_on);
    CAPTURE(crashes);
    const auto ends = crashes && !gets_on;
    auto group = in_loop(1);
    auto over = false;
    for (std::uint32_t attempt = 1; attempt < 8 && !over; ++attempt) {
      if (gets_on)
        group.on_applied({attempt - 1}, {std::uint64_t{3} * attempt});
      const auto crashed = worker_ended{run, {attempt - 1}, 139, "killed by signal 11 (SIGSEGV)", {}};
      const auto actions = group.on_ended(crashes ? crashed : killed(attempt - 1));
      over = find<conclude>(actions) != nullptr;
      CHECK(over == (ends && attempt == 3));
      if (over) {
        CHECK(find<conclude>(actions)->reason.code == errc::worker_lost);
        CHECK(says(find<conclude>(actions)->reason.message, "3 attempts ended in step 1: worker 2 (rank 0)"));
        break;
      }
      REQUIRE(find<restart_run>(actions));
      group.on_restarted({{{attempt}, {0}, 0, 0, 1}}, std::nullopt, {gets_on ? 3 * attempt - 1 : 0});
      begin(group, {attempt}, attempt + 1);
    }
    CHECK(over == ends);
  }
}

TEST_CASE("a worker that is killed while the processes start has the run started again; one that ends itself ends it") {
  auto group = run_coordinator{settings_for(2, 2)};
  static_cast<void>(group.on_ready(ready_of(0)));
  CHECK(find<restart_run>(group.on_ended(killed(1))));
  CHECK(group.attempt() == 2);
  auto lost = run_coordinator{settings_for(4, 4)};
  CHECK(count<restart_run>(lost.on_node_lost(1, "10.0.0.2:4000")) == 1);
  auto crashed = run_coordinator{settings_for(2, 2)};
  CHECK(find<conclude>(crashed.on_ended({run, {1}, 1, "exit code 1", {}})));
}

TEST_CASE("workers that do not join in time are tried once more, and end the run if they do not come then") {
  auto group = run_coordinator{settings_for(2, 2)};
  static_cast<void>(group.on_ready(ready_of(0)));
  CHECK(find<restart_run>(group.on_start_timeout()));
  CHECK(says(group.failures()[0].reason.message, "worker 1 (rank 1) did not join in time"));
  group.on_restarted({{{2}, {0}, 0, 0, 1}, {{3}, {1}, 0, 1, 1}}, std::nullopt, {});
  const auto again = group.on_start_timeout();
  REQUIRE(find<conclude>(again));
  CHECK(find<conclude>(again)->reason.code == errc::timed_out);
  // Those who have come in between make up for it.
  auto other = in_loop(1);
  static_cast<void>(other.on_ended(killed(0)));
  other.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {});
  CHECK(find<restart_run>(other.on_start_timeout()));
  other.on_restarted({{{2}, {0}, 0, 0, 1}}, std::nullopt, {});
  begin(other, {2}, other.generation().value);
  CHECK(find<restart_run>(other.on_ended(killed(2))));
  other.on_restarted({{{3}, {0}, 0, 0, 1}}, std::nullopt, {});
  CHECK(find<restart_run>(other.on_start_timeout()));
}

TEST_CASE("attempts that end for want of memory before anything is done end the run, although the kernel kills them") {
  auto group = in_loop(1);
  for (std::uint32_t attempt = 1;; ++attempt) {
    auto ended = killed(attempt - 1);
    ended.out_of_memory = true;
    const auto actions = group.on_ended(ended);
    if (find<conclude>(actions)) {
      CHECK(attempt == 3);
      break;
    }
    REQUIRE(attempt < 3);
    group.on_restarted({{{attempt}, {0}, 0, 0, 1}}, std::nullopt, {});
    begin(group, {attempt}, attempt + 1);
  }
}

TEST_CASE("a group of which no rank moves is formed anew, and ends the run if it stands there again") {
  auto group = in_loop(2);
  const auto stands = group.on_group_hang("no rank has made progress for 300 s");
  REQUIRE(find<abort_generation>(stands));
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].reason.code == errc::timed_out);
  // While they report there is nothing to be done.
  CHECK(group.on_group_hang("no rank has made progress for 600 s").empty());
  static_cast<void>(group.on_report(in_step(0, 3)));
  REQUIRE(find<form_generation>(group.on_report(in_step(1, 3))));
  group.on_applied({0}, {4});
  CHECK(find<abort_generation>(group.on_group_hang("no rank has made progress for 300 s")));
  static_cast<void>(group.on_report(in_step(0, 4, 2)));
  REQUIRE(find<form_generation>(group.on_report(in_step(1, 4, 2))));
  const auto again = group.on_group_hang("no rank has made progress for 300 s");
  CHECK(find<abort_all>(again));
  CHECK(says(again[0].why, "as in the generation before"));
  auto config = settings_for(2, 2);
  config.failure.max_failures = 0;
  CHECK(find<abort_all>(in_loop(config).on_group_hang("no rank has made progress for 300 s")));
}

TEST_CASE("a joiner that says that it is alive may take its time before its first loop") {
  using time = run_coordinator::time;
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(group.on_report(in_step(0, 3)));
  group.on_started({{{2}, {1}, 0, 0, 1}}, time{1s});
  REQUIRE(find<begin_joiner>(group.on_ready(ready_of(2))));
  for (auto now = time{500s}; now < time{5000s}; now += 500s) {
    group.on_sign_of_life({2}, static_cast<std::uint64_t>(now.time_since_epoch().count()), now);
    CHECK(find<fence_worker>(group.on_tick(now + 499s)) == nullptr);
  }
  group.on_sign_of_life({2}, 7, time{5000s});
  group.on_sign_of_life({2}, 7, time{5500s});
  CHECK(find<fence_worker>(group.on_tick(time{5601s})));
}

TEST_CASE("nobody is told to have failed who only has no state to go on with") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  REQUIRE(find<form_generation>(group.on_report(in_step(0, 3))));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(group.on_report(at_boundary(0, 5, 2))));
  // It is lost before the joiner has the state.
  static_cast<void>(group.on_ended(killed(0)));
  REQUIRE(find<restart_run>(group.on_report(asks_for_place(2, 3))));
  REQUIRE(group.failures().size() == 2);
  CHECK(group.failures()[1].worker == worker_id{0});
}

TEST_CASE("a lost node that all workers were on has the run started again, once") {
  auto group = in_loop(2);
  const auto lost = group.on_node_lost(0, "10.0.0.1:4000");
  CHECK(count<restart_run>(lost) == 1);
  CHECK(group.attempt() == 2);
}

TEST_CASE("a training function that cannot go on without a lost peer starts again from the latest checkpoint") {
  auto group = in_loop(3);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  const auto cannot = [](std::uint32_t worker) {
    auto result = cut_off(worker, 3);
    result.needs_restart = true;
    return result;
  };
  CHECK(find<restart_run>(group.on_finished(cannot(0))));
  CHECK(group.on_finished(cannot(2)).empty());
  REQUIRE(group.failures().size() == 2);
  CHECK_FALSE(group.failures()[0].consequence);
  CHECK(group.failures()[1].consequence);
  auto config = settings_for(2, 2);
  config.failure.max_failures = 0;
  auto strict = in_loop(config);
  CHECK(find<abort_all>(strict.on_finished(cannot(0))));
}
