#include <troupe/actors/decisions/run_coordinator.hpp>

#include <algorithm>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

/// How the coordinator has joiners given the state while the others train on.
namespace {

const auto run = run_id{"r"};
constexpr auto start = run_coordinator::time{} + 1h;

template <class Action>
const Action* find(const run_actions& actions) {
  for (const auto& x : actions)
    if (const auto* found = std::get_if<Action>(&x.what))
      return found;
  return nullptr;
}

run_plan plan_of(std::uint32_t worker, std::uint64_t generation, std::uint32_t loop = 0) {
  return {run, {generation}, {worker}, 100, 64, 1797, "digits", "w f32 [3]", loop, {}, 1'000};
}

regroup_report report_of(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation) {
  return {run, {generation}, {worker}, 0, worker_position::between_steps{{{committed}, 1, 0}}, {}};
}

regroup_report asks_for_place(std::uint32_t worker, std::uint64_t staging = 0) {
  return {run, {}, {worker}, 0, worker_position::without_state{staging}, {}};
}

/// Of a joiner that has followed the others to their boundary.
regroup_report has_followed(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation,
                            std::uint64_t staging) {
  return {run, {generation}, {worker}, 0, worker_position::caught_up{{{committed}, 1, 0}, staging}, {}};
}

caught_up has_caught_up(std::uint32_t worker, std::uint64_t generation, std::uint64_t staging, std::uint64_t step) {
  return {run, {worker}, {generation}, staging, {step}};
}

worker_ended killed(std::uint32_t worker) {
  return {run, {worker}, 137, "killed by signal 9 (SIGKILL)", {}};
}

/// Two workers on a node, in their loop, with a state that is worth while.
run_coordinator two_in_loop(worker_range range = 2, std::uint64_t transfer_above = 999) {
  run_coordinator::settings config;
  config.run = run;
  config.workers = range;
  config.failure.background_transfer_above_bytes = transfer_above;
  for (std::uint32_t i = 0; i < 2; ++i)
    config.places.push_back({{i}, {i}, 0, i, 2});
  auto result = run_coordinator{config};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(result.on_ready({run, {i}, 100 + i, "host", "", ""}));
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(result.on_plan(plan_of(i, 1)));
  REQUIRE(result.accepted().size() == 1);
  return result;
}

/// A process was started, and comes as far as its first loop.
void prepare(run_coordinator& group, std::uint32_t worker, std::uint32_t node = 0) {
  group.on_started({{{worker}, {worker}, node, 0, 1}}, start);
  REQUIRE(find<begin_joiner>(group.on_ready({run, {worker}, 100 + worker, "host", "", ""})));
  REQUIRE(find<accept_plan_of>(group.on_plan(plan_of(worker, 0))));
}

/// Worker 2 is to be a third, and follows the others.
run_coordinator with_a_follower() {
  auto group = two_in_loop();
  REQUIRE(find<start_more>(group.on_resize(3)));
  prepare(group, 2);
  REQUIRE(find<stage_joiners>(group.on_report(asks_for_place(2), start)));
  return group;
}

bool asks_for_regroup(const run_actions& actions) {
  const auto* found = find<send_command>(actions);
  return actions.size() == 1 && found != nullptr && std::holds_alternative<regroup_command>(found->command.what);
}

/// By rank.
std::vector<std::uint32_t> workers_of(const form_generation& next) {
  std::vector<std::uint32_t> result;
  for (const auto& place : next.places)
    result.push_back(place.worker.value);
  return result;
}

using ids = std::vector<std::uint32_t>;

} // namespace

TEST_CASE(
    "a joiner is given a large state while the others train on, and is one of them at the boundary it has come to") {
  auto group = two_in_loop();
  static_cast<void>(group.on_resize(3));
  prepare(group, 2);
  const auto staged = group.on_report(asks_for_place(2), start);
  // First the others are told, who may come to the exchange first or last.
  REQUIRE(staged.size() == 2);
  const auto& command = std::get<send_command>(staged[0].what).command;
  CHECK(command == control_command{run, 1, stage_command{{1}, {0}, transport_kind::shm, 0}});
  CHECK(std::get<stage_joiners>(staged[1].what) ==
        stage_joiners{{{1}, {0}, transport_kind::shm, 0}, 1, 2, {{{2}, {2}}}});
  CHECK(group.training());

  CHECK(asks_for_regroup(group.on_caught_up(has_caught_up(2, 1, 1, 40))));
  CHECK(group.on_caught_up(has_caught_up(2, 1, 1, 40)).empty());
  CHECK(group.on_report(report_of(0, 42, 1), start).empty());
  CHECK(group.on_report(report_of(1, 42, 1), start).empty());
  const auto formed = group.on_report(has_followed(2, 42, 1, 1), start);
  REQUIRE(find<form_generation>(formed));
  const auto& next = *find<form_generation>(formed);
  CHECK(workers_of(next) == ids{0, 1, 2});
  CHECK(next.joiners.empty());
  CHECK(next.compared == std::vector<worker_id>{{2}, {0}});
  CHECK(next.decision.commit_point == step_id{42});
  CHECK(next.record.steps_redone == 0);
}

TEST_CASE("the joiner may come to the boundary before the others") {
  auto group = with_a_follower();
  static_cast<void>(group.on_caught_up(has_caught_up(2, 1, 1, 40)));
  CHECK(group.on_report(has_followed(2, 42, 1, 1), start).empty());
  CHECK(group.on_report(report_of(1, 42, 1), start).empty());
  const auto formed = group.on_report(report_of(0, 42, 1), start);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1, 2});
}

TEST_CASE("for a small state the others wait, and for a large one where they wait anyway") {
  auto small = two_in_loop(2, 1'000);
  static_cast<void>(small.on_resize(3));
  prepare(small, 2);
  CHECK(asks_for_regroup(small.on_report(asks_for_place(2), start)));

  auto paused = two_in_loop();
  static_cast<void>(paused.on_resize(3));
  CHECK(asks_for_regroup(paused.on_pause()));
  static_cast<void>(paused.on_report(report_of(0, 5, 1), start));
  REQUIRE(find<hold>(paused.on_report(report_of(1, 5, 1), start)));
  prepare(paused, 2);
  CHECK(paused.on_report(asks_for_place(2), start).empty());
  // The pause ends the wait, and with it the reason to wait.
  const auto formed = paused.on_resume();
  REQUIRE(find<form_generation>(formed));

  auto too_few = two_in_loop({2, 3});
  static_cast<void>(too_few.on_ended(killed(1)));
  REQUIRE(find<hold>(too_few.on_report(report_of(0, 5, 1), start)));
  prepare(too_few, 2);
  const auto enough = too_few.on_report(asks_for_place(2), start);
  REQUIRE(find<form_generation>(enough));
  CHECK(find<form_generation>(enough)->joiners == std::vector{worker_id{2}});
}

TEST_CASE("joiners that come together follow together, and the regroup is for the last of them") {
  auto group = two_in_loop();
  static_cast<void>(group.on_resize(4));
  group.on_started({{{2}, {2}, 0, 0, 1}, {{3}, {3}, 1, 0, 1}}, start);
  for (std::uint32_t i = 2; i < 4; ++i) {
    static_cast<void>(group.on_ready({run, {i}, 100 + i, "host", "", ""}));
    static_cast<void>(group.on_plan(plan_of(i, 0)));
  }
  CHECK(group.on_report(asks_for_place(2), start).empty());
  const auto staged = group.on_report(asks_for_place(3), start);
  REQUIRE(find<stage_joiners>(staged));
  CHECK(*find<stage_joiners>(staged) ==
        stage_joiners{{{1}, {0, 1}, transport_kind::hierarchical, 0}, 1, 2, {{{2}, {2}}, {{3}, {3}}}});
  CHECK(group.on_caught_up(has_caught_up(3, 1, 1, 40)).empty());
  CHECK(asks_for_regroup(group.on_caught_up(has_caught_up(2, 1, 1, 45))));
}

TEST_CASE("one that asks again while it follows is told the same, and what it says late of an older group is nothing") {
  auto group = with_a_follower();
  const auto again = group.on_report(asks_for_place(2), start);
  REQUIRE(again.size() == 1);
  CHECK(std::get<stage_joiners>(again[0].what) ==
        stage_joiners{{{1}, {0}, transport_kind::shm, 0}, 1, 2, {{{2}, {2}}}});
  CHECK(group.on_caught_up(has_caught_up(2, 1, 7, 40)).empty());
  CHECK(group.on_caught_up(has_caught_up(2, 9, 1, 40)).empty());
  CHECK(group.on_caught_up(has_caught_up(0, 1, 1, 40)).empty());
}

TEST_CASE("a joiner that falls back follows again, and after three times the others wait for it") {
  auto group = with_a_follower();
  for (std::uint64_t number = 1; number < 3; ++number) {
    const auto again = group.on_report(asks_for_place(2, number), start);
    REQUIRE(find<stage_joiners>(again));
    CHECK(find<stage_joiners>(again)->number == number + 1);
  }
  const auto last = group.on_report(asks_for_place(2, 3), start);
  REQUIRE(find<send_command>(last));
  CHECK(std::holds_alternative<regroup_command>(find<send_command>(last)->command.what));
}

TEST_CASE("when one of the others is lost, the joiner does not hold them up, and follows who is left") {
  auto group = with_a_follower();
  REQUIRE(find<abort_generation>(group.on_ended(killed(1))));
  const auto formed = group.on_report(report_of(0, 10, 1), start);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
  const auto again = group.on_report(asks_for_place(2, 1), start);
  REQUIRE(find<stage_joiners>(again));
  CHECK(find<stage_joiners>(again)->sources == 1);
}

TEST_CASE("a loss at the boundary: who has followed the others there counts as one of them, and may be the last") {
  auto group = with_a_follower();
  static_cast<void>(group.on_caught_up(has_caught_up(2, 1, 1, 40)));
  CHECK(group.on_report(has_followed(2, 42, 1, 1), start).empty());
  static_cast<void>(group.on_ended(killed(1)));
  const auto formed = group.on_ended(killed(0));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{2});
  CHECK(find<form_generation>(formed)->decision.commit_point == step_id{42});
  CHECK(find<form_generation>(formed)->decision.commands_agreed == 1);
}

TEST_CASE("a joiner that has followed the others where they are no more gets the state again") {
  auto group = with_a_follower();
  // Another reason to regroup, before it was caught up: nobody waits.
  CHECK(asks_for_regroup(group.on_pause()));
  static_cast<void>(group.on_resume());
  static_cast<void>(group.on_report(report_of(0, 20, 1), start));
  REQUIRE(find<form_generation>(group.on_report(report_of(1, 20, 1), start)));
  const auto again = group.on_report(has_followed(2, 20, 1, 1), start);
  REQUIRE(find<stage_joiners>(again));
  // And once more, from the old one.
  static_cast<void>(group.on_report(asks_for_place(2, 2), start));
}

TEST_CASE("a joiner that is lost while it follows, or is waited for, costs the others nothing") {
  auto group = with_a_follower();
  const auto lost = group.on_ended(killed(2));
  REQUIRE(find<end_staging>(lost));
  CHECK(find<end_staging>(lost)->number == 1);
  REQUIRE(find<start_more>(lost));
  CHECK_FALSE(find<abort_generation>(lost));

  auto waiting = with_a_follower();
  static_cast<void>(waiting.on_caught_up(has_caught_up(2, 1, 1, 40)));
  static_cast<void>(waiting.on_report(report_of(0, 42, 1), start));
  CHECK(waiting.on_report(report_of(1, 42, 1), start).empty());
  const auto without = waiting.on_ended(killed(2));
  REQUIRE(find<form_generation>(without));
  CHECK(workers_of(*find<form_generation>(without)) == ids{0, 1});
}

TEST_CASE("one that has said to be caught up and does not come is waited for two seconds") {
  auto group = with_a_follower();
  static_cast<void>(group.on_caught_up(has_caught_up(2, 1, 1, 40)));
  static_cast<void>(group.on_report(report_of(0, 42, 1), start));
  static_cast<void>(group.on_report(report_of(1, 42, 1), start));
  CHECK(group.on_tick(start).empty());
  CHECK(group.on_tick(start + 1900ms).empty());
  const auto formed = group.on_tick(start + 2100ms);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
}

TEST_CASE("a joiner that is not wanted any more leaves nobody waiting for its group") {
  auto fewer = with_a_follower();
  const auto gone = fewer.on_resize(2);
  CHECK(find<fence_worker>(gone));
  CHECK(find<end_staging>(gone));

  auto next_loop = with_a_follower();
  static_cast<void>(next_loop.on_plan(plan_of(0, 1, 1)));
  const auto accepted = next_loop.on_plan(plan_of(1, 1, 1));
  REQUIRE(find<end_staging>(accepted));
  CHECK_FALSE(find<fence_worker>(accepted));
  // What it has heard of the loop before does not count in the next.
  CHECK(next_loop.on_caught_up(has_caught_up(2, 1, 1, 40)).empty());
  static_cast<void>(next_loop.on_pause());
  CHECK(find<skip_loop>(next_loop.on_report(has_followed(2, 40, 1, 1), start)));
}

TEST_CASE("who still forms a group that a joiner has left is let go, before the next is formed") {
  auto group = with_a_follower();
  const auto again = group.on_report(asks_for_place(2, 1), start);
  REQUIRE(again.size() == 3);
  CHECK(std::get<end_staging>(again[0].what).number == 1);
  CHECK(std::get<send_command>(again[1].what).command.sequence == 2);
  CHECK(std::get<stage_joiners>(again[2].what).number == 2);
}

TEST_CASE("a joiner that is waited for and goes with its node lets the others go on") {
  auto group = two_in_loop();
  static_cast<void>(group.on_resize(3));
  prepare(group, 2, 1);
  static_cast<void>(group.on_report(asks_for_place(2), start));
  static_cast<void>(group.on_caught_up(has_caught_up(2, 1, 1, 40)));
  static_cast<void>(group.on_report(report_of(0, 42, 1), start));
  CHECK(group.on_report(report_of(1, 42, 1), start).empty());
  CHECK(find<form_generation>(group.on_node_leaving(1, false)));
}

TEST_CASE("a joiner takes the place of a worker that leaves at the same boundary, however large the state is") {
  run_coordinator::settings config;
  config.run = run;
  config.workers = 2;
  config.failure.background_transfer_above_bytes = 999;
  config.places = {{{0}, {0}, 0, 0, 1}, {{1}, {1}, 1, 0, 1}};
  auto group = run_coordinator{config};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_ready({run, {i}, 100 + i, "host", "", ""}));
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_plan(plan_of(i, 1)));
  REQUIRE(find<start_more>(group.on_node_leaving(1, true)));
  prepare(group, 2);
  REQUIRE(asks_for_regroup(group.on_report(asks_for_place(2), start)));
  CHECK(group.on_report(report_of(0, 42, 1), start).empty());
  const auto formed = group.on_report(report_of(1, 42, 1), start);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 2});
  CHECK(find<form_generation>(formed)->joiners == std::vector<worker_id>{{2}});
  CHECK(find<form_generation>(formed)->released == std::vector<worker_id>{{1}});
}

TEST_CASE("a joiner that is told to skip a loop has the whole time to come to the next") {
  auto group = with_a_follower();
  static_cast<void>(group.on_plan(plan_of(0, 1, 1)));
  static_cast<void>(group.on_plan(plan_of(1, 1, 1)));
  const auto later = start + 11min;
  REQUIRE(find<skip_loop>(group.on_report(asks_for_place(2, 1), later)));
  CHECK_FALSE(find<fence_worker>(group.on_tick(later)));
  CHECK(find<fence_worker>(group.on_tick(later + 11min)));
}
