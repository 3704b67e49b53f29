#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("the workers of a node that leaves go when their replacements have come, and no step is redone") {
  auto group = in_loop(4);
  const auto leaving = group.on_node_leaving(1, true);
  CHECK(find<warn>(leaving));
  CHECK(asked_for(leaving) == 2);
  CHECK(find<send_command>(leaving) == nullptr);
  prepare(group, 4, 0);
  prepare(group, 5, 0);
  CHECK(group.on_report(asks_for_place(4)).empty());
  CHECK(asks_for_regroup(group.on_report(asks_for_place(5))));
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  const auto& next = *find<form_generation>(formed);
  CHECK(workers_of(next) == ids{0, 1, 4, 5});
  CHECK(next.released == std::vector{worker_id{2}, worker_id{3}});
  CHECK(next.record.steps_redone == 0);
  CHECK_FALSE(next.record.interrupted_step);
  CHECK(group.on_ended({run, {2}, 0, "exit code 0", {}}).empty());
  CHECK(only_makes_room(group.on_ended(killed(3))));
  CHECK(group.on_node_lost(1, "10.0.0.2:4000").empty());
  CHECK(group.failures().empty());
  CHECK(group.training());
}

TEST_CASE("the workers of a node that is taken back stay, and replacements that have come are not needed") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_leaving(1, true)) == 2);
  SUBCASE("before any replacement") {
    CHECK(asked_for(group.on_node_resumed(1)) == 0);
    CHECK(group.on_drain_timeout().empty());
  }
  SUBCASE("with replacements on their way") {
    group.on_started({{{4}, {4}, 0, 0, 1}, {{5}, {5}, 0, 0, 1}});
    static_cast<void>(group.on_node_resumed(1));
    CHECK(group.on_drain_timeout().empty());
  }
  SUBCASE("after they have gone") {
    static_cast<void>(group.on_node_leaving(1, false));
    static_cast<void>(gather(group, {0, 1, 2, 3}, 8));
    CHECK(asked_for(group.on_node_resumed(1)) == 2);
  }
  CHECK(group.failures().empty());
}

TEST_CASE("without capacity elsewhere the workers of a node that leaves go at the next boundary") {
  auto group = in_loop(4);
  const auto leaving = group.on_node_leaving(1, false);
  CHECK(asks_for_regroup(leaving));
  CHECK(asked_for(leaving) == 0);
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK(find<form_generation>(formed)->released.size() == 2);
  CHECK(group.failures().empty());
  CHECK(group.on_drain_timeout().empty());
  // Who goes is missed when there is capacity again.
  CHECK(asked_for(group.on_capacity()) == 2);
}

TEST_CASE("replacements that do not come in time are not waited for") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_leaving(1, true)) == 2);
  group.on_started({{{4}, {4}, 0, 0, 1}});
  CHECK(asks_for_regroup(group.on_drain_timeout()));
  CHECK(group.on_drain_timeout().empty());
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
}

TEST_CASE("who leaves goes with the next loss only where nobody is in the middle of a step") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_node_leaving(1, false)));
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(in_step(1, 5)).empty());
  CHECK(group.on_report(in_step(2, 5)).empty());
  const auto formed = group.on_report(in_step(3, 5));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{1, 2, 3});
  CHECK(asks_for_regroup(formed, 2));
  const auto drained = gather(group, {1, 2, 3}, 6, 2);
  REQUIRE(find<form_generation>(drained));
  CHECK(workers_of(*find<form_generation>(drained)) == ids{1});
}

TEST_CASE("when all workers are on the node that leaves, they stay until others have the state") {
  auto group = in_loop(2);
  CHECK(asked_for(group.on_node_leaving(0, true)) == 2);
  prepare(group, 2, 1);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(2))));
  const auto joined = gather(group, {0, 1}, 8);
  REQUIRE(find<form_generation>(joined));
  CHECK(workers_of(*find<form_generation>(joined)) == ids{0, 1, 2});
  CHECK(find<form_generation>(joined)->released.empty());
  CHECK(asks_for_regroup(joined, 2));
  const auto drained = gather(group, {0, 1, 2}, 9, 2);
  REQUIRE(find<form_generation>(drained));
  CHECK(workers_of(*find<form_generation>(drained)) == ids{2});
  CHECK(find<form_generation>(drained)->released.size() == 2);
}

TEST_CASE("when the last node leaves, the run stands in a checkpoint, and starts again where there is capacity") {
  auto group = in_loop(2);
  const auto leaving = group.on_node_leaving(0, false);
  REQUIRE(leaving.size() == 2);
  const auto* first = std::get_if<send_command>(&leaving[0].what);
  const auto* second = std::get_if<send_command>(&leaving[1].what);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(std::holds_alternative<regroup_command>(first->command.what));
  CHECK(std::holds_alternative<checkpoint_command>(second->command.what));
  CHECK(second->command.sequence == first->command.sequence + 1);
  const auto gone = gather(group, {0, 1}, 8);
  CHECK(count<refuse_report>(gone) == 2);
  CHECK(count<release_one>(gone) == 2);
  CHECK(find<restart_run>(gone));
  CHECK(group.attempt() == 2);
  CHECK(group.failures().empty());
}

TEST_CASE("joiners that come about the same time are let in together; one that takes longer is not waited for") {
  const auto start = run_coordinator::time{} + 1h;
  auto group = in_loop(4);
  static_cast<void>(group.on_node_lost(1, "10.0.0.2:4000"));
  static_cast<void>(gather(group, {0, 1}, 4));
  prepare(group, 4, 0);
  prepare(group, 5, 0);
  CHECK(group.on_report(asks_for_place(4), start).empty());
  CHECK(group.on_tick(start + 400ms).empty());
  CHECK(asks_for_regroup(group.on_tick(start + 600ms), 2));
  CHECK(group.on_tick(start + 800ms).empty());
  const auto formed = gather(group, {0, 1}, 6, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1, 4});
  CHECK(asks_for_regroup(group.on_report(asks_for_place(5), start + 2s), 3));
}

TEST_CASE("a joiner that comes to a loop that the others have left goes on to the next, with what they have found") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  REQUIRE(find<form_generation>(group.on_report(in_step(0, 7))));
  prepare(group, 2, 0);
  auto next_loop = plan_of(0, 2);
  next_loop.loop = 1;
  next_loop.evaluations = {{0.25}};
  // Nobody is replaced for it.
  CHECK(group.on_plan(next_loop).size() == 1);
  const auto told = group.on_report(asks_for_place(2));
  REQUIRE(told.size() == 1);
  CHECK(std::get<skip_loop>(told[0].what) == skip_loop{{2}, {{0.25}}});
  auto plan = plan_of(2, 0);
  plan.loop = 1;
  REQUIRE(find<accept_plan_of>(group.on_plan(plan)));
  // One that waits already is told at once, as often as it takes.
  static_cast<void>(group.on_pause());
  CHECK(group.on_report(asks_for_place(2)).empty());
  next_loop.loop = 2;
  next_loop.evaluations = {};
  const auto accepted = group.on_plan(next_loop);
  REQUIRE(find<skip_loop>(accepted));
  CHECK(find<skip_loop>(accepted)->evaluations.empty());
  plan.loop = 2;
  REQUIRE(find<accept_plan_of>(group.on_plan(plan)));
  static_cast<void>(group.on_resume());
  CHECK(group.on_report(asks_for_place(2)).empty());
  const auto formed = group.on_report(at_boundary(0, 9, 2));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 2});
}

TEST_CASE("a failure found at a boundary is not taken for the regroup that was asked for") {
  auto group = in_loop(3);
  static_cast<void>(group.on_pause());
  auto failed = at_boundary(0, 5);
  failed.reason = {errc::aborted, "rank 2 is gone"};
  CHECK(find<abort_generation>(group.on_report(failed)));
}

TEST_CASE("a joiner that does not join in time is killed, and another one is started") {
  const auto start = run_coordinator::time{} + 1h;
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  group.on_started({{{2}, {1}, 0, 0, 1}}, start);
  CHECK(group.on_tick(start + 29s).empty());
  const auto late = group.on_tick(start + 31s);
  REQUIRE(find<fence_worker>(late));
  CHECK(find<fence_worker>(late)->worker == worker_id{2});
  CHECK(asked_for(late) == 1);
  CHECK(group.failures().back().reason.code == errc::timed_out);
  CHECK(group.on_tick(start + 32s).empty());
  CHECK(only_makes_room(group.on_ended(killed(2))));
}

TEST_CASE("joiners on a node that leaves are not waited for, and a node without workers may go") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2, 3}, 4));
  group.on_started({{{4}, {3}, 2, 0, 1}});
  CHECK(group.on_node_leaving(7, true).empty());
  const auto leaving = group.on_node_leaving(2, true);
  REQUIRE(find<fence_worker>(leaving));
  CHECK(find<fence_worker>(leaving)->worker == worker_id{4});
  CHECK(asked_for(leaving) == 1);
  CHECK(only_makes_room(group.on_ended(killed(4))));
  CHECK(group.failures().size() == 1);
}
