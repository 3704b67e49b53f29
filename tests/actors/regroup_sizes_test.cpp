#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("what a training function with a custom loop cannot do is told, and changes nothing") {
  auto group = run_coordinator{settings_for(2, 2)};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_ready(ready_of(i)));
  run_plan plan;
  plan.run = run;
  plan.generation = {1};
  for (std::uint32_t i = 0; i < 2; ++i) {
    plan.worker = {i};
    static_cast<void>(group.on_plan(plan));
  }
  REQUIRE(group.accepted().size() == 1);
  for (const auto& told : {group.on_pause(), group.on_resize(1), group.on_checkpoint_request()}) {
    REQUIRE(told.size() == 1);
    CHECK(std::holds_alternative<warn>(told[0].what));
    CHECK(says(told[0].why, "a custom loop"));
  }
  CHECK(group.training());
}

TEST_CASE("nobody is started for, or asked to leave, a loop of the training function's own") {
  auto group = run_coordinator{settings_for(2, {1, 4})};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_ready(ready_of(i)));
  // It was started before anybody knew.
  group.on_started({{{2}, {2}, 1, 0, 1}});
  run_plan plan;
  plan.run = run;
  plan.generation = {1};
  plan.worker = {0};
  static_cast<void>(group.on_plan(plan));
  plan.worker = {1};
  const auto accepted = group.on_plan(plan);
  REQUIRE(find<fence_worker>(accepted));
  CHECK(find<fence_worker>(accepted)->worker == worker_id{2});
  CHECK(asked_for(accepted) == 0);
  CHECK(group.on_capacity().empty());
  const auto leaving = group.on_node_leaving(0, true);
  REQUIRE(leaving.size() == 1);
  CHECK(std::holds_alternative<warn>(leaving[0].what));
  CHECK(asked_for(group.on_ended(killed(1))) == 0);
}

TEST_CASE("who was to go because fewer are wanted stays when the others go with their node") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_resize(2)));
  // Workers 0 and 1, who were to stay, are there.
  static_cast<void>(group.on_node_leaving(0, false));
  const auto formed = gather(group, {0, 1, 2, 3}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{2, 3});
  CHECK(find<restart_run>(formed) == nullptr);
}

TEST_CASE("a run that is to have more workers starts them, and lets them in") {
  auto group = in_loop(2);
  CHECK(asked_for(group.on_resize(4)) == 2);
  CHECK(group.on_resize(0).empty());
  prepare(group, 2, 1);
  prepare(group, 3, 1);
  CHECK(group.on_resize(4).empty());
  static_cast<void>(group.on_report(asks_for_place(2)));
  static_cast<void>(group.on_report(asks_for_place(3)));
  const auto formed = gather(group, {0, 1}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1, 2, 3});
  CHECK(group.failures().empty());
}

TEST_CASE("a run that is to have fewer workers lets the last ranks go, and does not replace them") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_resize(2)));
  const auto formed = gather(group, {3, 1, 0, 2}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK(find<form_generation>(formed)->released == std::vector{worker_id{2}, worker_id{3}});
  CHECK(group.on_capacity().empty());
  CHECK(asked_for(group.on_ended(killed(1))) == 1);
}

TEST_CASE("whoever is on the way counts when a run is to have another size") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(3)));
  static_cast<void>(gather(group, {0, 1, 2}, 4));
  group.on_started({{{4}, {3}, 0, 0, 1}});
  CHECK(group.on_resize(4).empty());
  const auto fewer = group.on_resize(3);
  REQUIRE(find<fence_worker>(fewer));
  CHECK(find<fence_worker>(fewer)->worker == worker_id{4});
  CHECK(asked_for(fewer) == 0);
  CHECK(find<send_command>(fewer) == nullptr);
  CHECK(only_makes_room(group.on_ended(killed(4))));
  CHECK(group.failures().size() == 1);
  group.on_started({{{5}, {3}, 0, 0, 1}});
  CHECK(asked_for(group.on_resize(6)) == 2);
}

TEST_CASE("a size that is asked for while the processes start is taken up when they have") {
  auto more = run_coordinator{settings_for(2, 2)};
  CHECK(more.on_resize(3).empty());
  CHECK(more.on_ready(ready_of(0)).empty());
  const auto begins = more.on_ready(ready_of(1));
  CHECK(find<begin_all>(begins));
  CHECK(asked_for(begins) == 1);
  auto fewer = run_coordinator{settings_for(2, 2)};
  CHECK(fewer.on_resize(1).empty());
  CHECK(fewer.on_ready(ready_of(0)).empty());
  const auto begins_with_two = fewer.on_ready(ready_of(1));
  CHECK(find<begin_all>(begins_with_two));
  CHECK(asks_for_regroup(begins_with_two));
}

TEST_CASE("capacity that comes while the processes start is used when they have") {
  auto group = run_coordinator{settings_for(2, {1, 4})};
  CHECK(group.on_capacity().empty());
  CHECK(group.on_ready(ready_of(0)).empty());
  CHECK(asked_for(group.on_ready(ready_of(1))) == 2);
}

TEST_CASE("a run that is paused holds at the next boundary, until it is resumed") {
  auto group = in_loop(2);
  CHECK(group.on_resume().empty());
  CHECK(asks_for_regroup(group.on_pause()));
  CHECK(group.on_pause().empty());
  const auto held = gather(group, {0, 1}, 5);
  REQUIRE(find<hold>(held));
  CHECK(find<hold>(held)->why == hold::cause::pause);
  CHECK(says(held.front().why, "paused after step 5"));
  CHECK(group.held());
  CHECK(group.awaited_reports().empty());
  // It is no lack of workers.
  CHECK(group.on_hold_timeout().empty());
  const auto formed = group.on_resume();
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK_FALSE(group.held());
  CHECK(group.failures().empty());
}

TEST_CASE("what happens during a pause is taken up when it ends") {
  auto group = in_loop(4);
  static_cast<void>(group.on_pause());
  static_cast<void>(gather(group, {0, 1, 2, 3}, 5));
  const auto lost = group.on_ended(killed(3));
  CHECK(asked_for(lost) == 1);
  CHECK(find<form_generation>(lost) == nullptr);
  prepare(group, 4, 1);
  CHECK(group.on_report(asks_for_place(4)).empty());
  CHECK(find<form_generation>(group.on_resize(3)) == nullptr);
  CHECK(group.held());
  const auto formed = group.on_resume();
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->decision.commit_point == step_id{5});
  CHECK(find<form_generation>(formed)->places.size() <= 4);
}

TEST_CASE("a pause that is over before the boundary costs a new generation, and nothing else") {
  auto group = in_loop(2);
  static_cast<void>(group.on_pause());
  CHECK(group.on_resume().empty());
  CHECK(find<form_generation>(gather(group, {0, 1}, 5)));
}

TEST_CASE("a stop ends a pause: who is held does one more step to stop after") {
  auto group = in_loop(2);
  static_cast<void>(group.on_pause());
  static_cast<void>(gather(group, {0, 1}, 5));
  const auto stopped = group.on_stop({false});
  CHECK(find<form_generation>(stopped));
  REQUIRE(find<send_command>(stopped));
  CHECK(std::holds_alternative<stop_command>(find<send_command>(stopped)->command.what));
  CHECK(group.training());
}

TEST_CASE("a pause is kept for a run that has not begun, or begins again") {
  auto early = run_coordinator{settings_for(1, 1)};
  CHECK(early.on_pause().empty());
  const auto begins = early.on_ready(ready_of(0));
  CHECK(find<begin_all>(begins));
  CHECK(asks_for_regroup(begins));
  auto group = in_loop(1);
  static_cast<void>(group.on_pause());
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {0});
  CHECK(asks_for_regroup(group.on_ready(ready_of(1)), 2));
}

TEST_CASE("a run with a range holds below its least number, and goes on when enough have come") {
  auto group = in_loop(settings_for(3, {2, 4}));
  static_cast<void>(group.on_ended(killed(0)));
  CHECK(find<form_generation>(gather(group, {1, 2}, 5)));
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  const auto held = gather(group, {2}, 5, 2);
  REQUIRE(find<hold>(held));
  CHECK(find<hold>(held)->why == hold::cause::too_few_workers);
  CHECK(says(held.front().why, "at least 2 workers, and has 1"));
  CHECK(group.held());
  prepare(group, 3, 0);
  const auto formed = group.on_report(asks_for_place(3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{2, 3});
  CHECK_FALSE(group.held());
  CHECK(group.on_hold_timeout().empty());
}

TEST_CASE("a run that has too few workers for too long ends, and says what to do") {
  auto group = in_loop(settings_for(2, {2, 4}));
  static_cast<void>(group.on_ended(killed(0)));
  REQUIRE(find<hold>(gather(group, {1}, 5)));
  const auto over = group.on_hold_timeout();
  REQUIRE(find<abort_all>(over));
  const auto end = group.on_finished(cut_off(1, 5));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::timed_out);
  CHECK(says(find<conclude>(end)->reason.message, "scaling.wait_for_workers"));
}

TEST_CASE("a run of a fixed number of workers, or one at its end, holds for nobody") {
  auto fixed = in_loop(3);
  static_cast<void>(fixed.on_ended(killed(0)));
  static_cast<void>(fixed.on_ended(killed(1)));
  CHECK(find<form_generation>(gather(fixed, {2}, 5)));
  auto ending = in_loop(settings_for(3, {3, 4}));
  static_cast<void>(ending.on_finished(finished(0)));
  static_cast<void>(ending.on_ended(killed(1)));
  CHECK(find<form_generation>(ending.on_report(elsewhere(2, 10))));
}
