#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("a lost worker is replaced: the others go on without it, and let the new one in between two steps") {
  auto group = in_loop(3);
  const auto lost = group.on_ended(killed(1));
  CHECK(find<abort_generation>(lost));
  CHECK(asked_for(lost) == 1);
  CHECK(group.on_report(in_step(0, 4)).empty());
  const auto without = group.on_report(in_step(2, 4));
  REQUIRE(find<form_generation>(without));
  CHECK(workers_of(*find<form_generation>(without)) == ids{0, 2});
  const auto& first = find<form_generation>(without)->record;
  CHECK(first.run == run);
  CHECK(first.generation == generation_id{2});
  CHECK(first.attempt == 1);
  CHECK(first.workers == 2);
  CHECK(first.commit_point == step_id{4});
  CHECK(first.steps_redone == 1);
  CHECK(first.interrupted_step);
  CHECK(says(first.reason, "worker 1 (rank 1) ended: killed by signal 9 (SIGKILL)"));

  prepare(group, 3, 1);
  CHECK(group.expects({3}) == false);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(3)), 2));
  // Asking again is harmless.
  CHECK(group.on_report(asks_for_place(3)).empty());
  CHECK(group.on_report(at_boundary(2, 9, 2)).empty());
  const auto with = group.on_report(at_boundary(0, 9, 2));
  REQUIRE(find<form_generation>(with));
  const auto& joined = *find<form_generation>(with);
  CHECK(workers_of(joined) == ids{0, 2, 3});
  CHECK(joined.joiners == std::vector{worker_id{3}});
  CHECK(joined.released.empty());
  CHECK(joined.decision.commit_point == step_id{9});
  CHECK(joined.record.generation == generation_id{3});
  CHECK(joined.record.steps_redone == 0);
  CHECK_FALSE(joined.record.interrupted_step);
  CHECK(says(joined.record.reason, "worker 3 (rank 3) joins"));
  CHECK(group.failures().size() == 1);
  // From now on it is as the others are.
  CHECK(asked_for(group.on_ended(killed(3))) == 1);
  CHECK(group.failures().back().step == step_id{10});
}

TEST_CASE("who has come compares its whole state with one who was there, until a step counts for it") {
  auto group = in_loop(3);
  using workers = std::vector<worker_id>;
  auto compared_after = [&](const run_actions& actions) {
    REQUIRE(find<form_generation>(actions));
    return find<form_generation>(actions)->compared;
  };
  // Nobody has committed a step yet: some may have left the first comparison, and others not.
  static_cast<void>(group.on_ended(killed(2)));
  static_cast<void>(group.on_report(in_step(0, 0)));
  CHECK(compared_after(group.on_report(in_step(1, 0))) == workers{{0}, {1}});
  static_cast<void>(group.on_ended(killed(1)));
  CHECK(compared_after(group.on_report(in_step(0, 4, 2))).empty());
  prepare(group, 3, 0);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(3)), 3));
  CHECK(compared_after(group.on_report(at_boundary(0, 6, 3))) == workers{{3}, {0}});
  static_cast<void>(group.on_ended(killed(3)));
  CHECK(compared_after(group.on_report(in_step(0, 6, 4))).empty());
  CHECK(asks_for_regroup(group.on_resize(1)) == false);
  static_cast<void>(group.on_pause());
  static_cast<void>(group.on_resume());
  CHECK(compared_after(group.on_report(at_boundary(0, 7, 5))).empty());
}

TEST_CASE("a joiner takes its rank beside the workers of its node, and nobody before it moves back") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2, 3}, 5));
  prepare(group, 4, 0);
  prepare(group, 5, 2);
  static_cast<void>(group.on_report(asks_for_place(5)));
  static_cast<void>(group.on_report(asks_for_place(4)));
  const auto formed = gather(group, {0, 2, 3}, 7, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places ==
        std::vector<worker_place>{
            {{0}, {0}, 0, 0, 2}, {{4}, {1}, 0, 1, 2}, {{2}, {2}, 1, 0, 2}, {{3}, {3}, 1, 1, 2}, {{5}, {4}, 2, 0, 1}});
}

TEST_CASE("whoever asks while the others are in the middle of a step waits for the next boundary") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  prepare(group, 3, 1);
  CHECK(group.on_report(asks_for_place(3)).empty());
  CHECK(group.on_report(in_step(0, 4)).empty());
  const auto formed = group.on_report(in_step(2, 4));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 2});
  // And is not forgotten.
  CHECK(asks_for_regroup(formed, 2));
  const auto with = gather(group, {0, 2}, 5, 2);
  REQUIRE(find<form_generation>(with));
  CHECK(workers_of(*find<form_generation>(with)) == ids{0, 2, 3});
}

TEST_CASE("a worker that joins before the others have agreed on a plan is compared when they have") {
  auto group = training(2);
  static_cast<void>(group.on_ended(killed(1)));
  group.on_started({{{2}, {1}, 0, 0, 1}});
  static_cast<void>(group.on_report(elsewhere(0, 0)));
  REQUIRE(group.training());
  auto joins = ready_of(2);
  joins.build_id.clear();
  CHECK(group.on_ready(joins).empty());
  const auto accepted = group.on_plan(plan_of(0, 2));
  CHECK(find<accept_plans>(accepted));
  REQUIRE(find<begin_joiner>(accepted));
  CHECK(find<begin_joiner>(accepted)->worker == worker_id{2});
}

TEST_CASE("a joiner that is of another kind is refused, and costs the others nothing") {
  for (const auto* what : {"build", "numerics", "plan"}) {
    CAPTURE(what);
    auto group = in_loop(3);
    static_cast<void>(group.on_ended(killed(1)));
    static_cast<void>(gather(group, {0, 2}, 4));
    REQUIRE(group.training());
    group.on_started({{{3}, {2}, 0, 1, 2}});
    auto joins = ready_of(3);
    auto code = errc::mismatch;
    auto refused = run_actions{};
    if (what == std::string{"build"}) {
      joins.build_id = "decaf";
      code = errc::program_mismatch;
      refused = group.on_ready(joins);
      REQUIRE(find<fence_worker>(refused));
      CHECK(find<fence_worker>(refused)->worker == worker_id{3});
      CHECK(says(find<fence_worker>(refused)->reason, "decaf"));
    } else if (what == std::string{"numerics"}) {
      joins.numerics = "v4";
      refused = group.on_ready(joins);
      REQUIRE(find<fence_worker>(refused));
      CHECK(says(find<fence_worker>(refused)->reason, "v4 / v3"));
    } else {
      CHECK(find<begin_joiner>(group.on_ready(joins)));
      auto plan = plan_of(3, 0);
      plan.batch_samples = 65;
      refused = group.on_plan(plan);
      REQUIRE(find<refuse_plans>(refused));
      CHECK(find<refuse_plans>(refused)->worker == worker_id{3});
      CHECK(says(find<refuse_plans>(refused)->reason.message, "batch size: 64 in this run, 65 on worker 3"));
      REQUIRE(find<release_one>(refused));
    }
    // Another one may do better.
    CHECK(asked_for(refused) == 1);
    CHECK(find<abort_generation>(refused) == nullptr);
    CHECK(find<send_command>(refused) == nullptr);
    CHECK(group.training());
    CHECK(group.exact_hosts());
    REQUIRE(group.failures().size() == 2);
    CHECK(group.failures()[1].worker == worker_id{3});
    CHECK(group.failures()[1].reason.code == code);
    // It is none of the run any more, whatever it says and however it ends.
    CHECK_FALSE(group.expects({3}));
    CHECK(group.on_ready(ready_of(3)).empty());
    CHECK(find<refuse_report>(group.on_report(asks_for_place(3))));
    CHECK(only_makes_room(group.on_ended(killed(3))));
    CHECK(group.failures().size() == 2);
  }
}

TEST_CASE("a joiner of another kind of host is taken in where that is allowed, and the result says so") {
  auto config = settings_for(2, 2);
  config.allow_mixed_hosts = true;
  auto group = in_loop(config);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  group.on_started({{{2}, {1}, 0, 1, 2}});
  auto joins = ready_of(2);
  joins.numerics = "v4";
  CHECK(group.exact_hosts());
  CHECK(find<begin_joiner>(group.on_ready(joins)));
  CHECK_FALSE(group.exact_hosts());
}

TEST_CASE("joiners that end by themselves, three in a row, are tried again later, or when there is new capacity") {
  auto group = in_loop(3);
  CHECK(asked_for(group.on_ended(killed(1))) == 1);
  static_cast<void>(gather(group, {0, 2}, 4));
  const auto crashes = [&](std::uint32_t worker) {
    group.on_started({{{worker}, {2}, 0, 1, 2}});
    return group.on_ended({run, {worker}, 127, "exit code 127", {"libfoo.so: not found"}});
  };
  CHECK(asked_for(crashes(3)) == 1);
  CHECK(asked_for(crashes(4)) == 1);
  const auto third = crashes(5);
  CHECK(asked_for(third) == 0);
  REQUIRE(find<warn>(third));
  CHECK(says(third.front().why, "3 workers in a row"));
  CHECK(says(third.front().why, "libfoo.so: not found"));
  CHECK(group.training());
  // The next loss of a member is put up with, and does not begin it anew.
  CHECK(asked_for(group.on_ended(killed(2))) == 0);
  static_cast<void>(gather(group, {0}, 5, 2));
  CHECK(asked_for(group.on_tick(run_time{} + 1h)) == 0);
  CHECK(asked_for(group.on_tick(run_time{} + 1h + 4s)) == 0);
  CHECK(asked_for(group.on_tick(run_time{} + 1h + 5s)) == 2);
  CHECK(asked_for(crashes(7)) == 0);
  CHECK(asked_for(group.on_capacity()) == 2);
  CHECK(asked_for(crashes(6)) == 2);
}

TEST_CASE("a joiner that got a place, or was killed from outside, does not count as one that cannot join") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  auto generation = std::uint64_t{2};
  auto next = std::uint32_t{2};
  for (auto round = 0; round < 3; ++round) {
    for (auto crash = 0; crash < 2; ++crash, ++next) {
      group.on_started({{{next}, {1}, 0, 1, 2}});
      CHECK(asked_for(group.on_ended({run, {next}, 1, "exit code 1", {}})) == 1);
    }
    prepare(group, next, 0);
    static_cast<void>(group.on_report(asks_for_place(next)));
    REQUIRE(find<form_generation>(gather(group, {0}, 5 + generation, generation)));
    ++generation;
    CHECK(asked_for(group.on_ended(killed(next))) == 1);
    static_cast<void>(gather(group, {0}, 5 + generation, generation));
    ++generation;
    ++next;
  }
  for (auto round = 0; round < 5; ++round, ++next) {
    group.on_started({{{next}, {1}, 0, 1, 2}});
    CHECK(asked_for(group.on_ended(killed(next))) == 1);
  }
}

TEST_CASE("nobody is replaced where that is not wanted, after a stop, or at the end") {
  auto config = settings_for(3, 3);
  config.failure.replace_lost = false;
  auto never = in_loop(config);
  CHECK(asked_for(never.on_ended(killed(1))) == 0);
  CHECK(asked_for(never.on_capacity()) == 0);
  auto stopped = in_loop(3);
  static_cast<void>(stopped.on_stop({false}));
  CHECK(asked_for(stopped.on_ended(killed(1))) == 0);
  auto ending = in_loop(3);
  static_cast<void>(ending.on_finished(finished(0)));
  CHECK(asked_for(ending.on_ended(killed(1))) == 0);
}

TEST_CASE("the workers of a lost node are asked for once, not once for each") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_lost(1, "10.0.0.2:4000")) == 2);
  // Joiners, too.
  static_cast<void>(gather(group, {0, 1}, 4));
  group.on_started({{{4}, {2}, 2, 0, 1}, {{5}, {3}, 2, 1, 1}});
  const auto again = group.on_node_lost(2, "10.0.0.3:4000");
  CHECK(asked_for(again) == 2);
  CHECK(find<abort_generation>(again) == nullptr);
  CHECK(group.failures().size() == 4);
}

TEST_CASE("a joiner that is lost while the state comes to it is dropped like any other") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(gather(group, {0}, 6, 2)));
  const auto lost = group.on_ended(killed(2));
  CHECK(find<abort_generation>(lost));
  CHECK(asked_for(lost) == 1);
  const auto formed = gather(group, {0}, 6, 3);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
}

TEST_CASE("one that has a place but not the state yet reports without it, and gets it at a boundary only") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  prepare(group, 3, 0);
  static_cast<void>(group.on_report(asks_for_place(3)));
  REQUIRE(find<form_generation>(gather(group, {0, 2}, 6, 2)));
  // The state was on its way when another is killed, and the third has gone on into a step.
  CHECK(find<abort_generation>(group.on_ended(killed(2))));
  auto without_state = asks_for_place(3);
  without_state.generation = {3};
  CHECK(group.on_report(without_state).empty());
  const auto formed = group.on_report(in_step(0, 6, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
  CHECK(asks_for_regroup(formed, 4));
  const auto with = gather(group, {0}, 7, 4);
  REQUIRE(find<form_generation>(with));
  CHECK(workers_of(*find<form_generation>(with)) == ids{0, 3});
  CHECK(find<form_generation>(with)->joiners == std::vector{worker_id{3}});
}

TEST_CASE("one that is to leave and has no state yet is let go where it cannot get it") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  prepare(group, 3, 1);
  static_cast<void>(group.on_report(asks_for_place(3)));
  REQUIRE(find<form_generation>(gather(group, {0, 2}, 6, 2)));
  static_cast<void>(group.on_node_leaving(1, false));
  static_cast<void>(group.on_ended(killed(2)));
  CHECK(group.on_report(asks_for_place(3, 3)).empty());
  const auto formed = group.on_report(in_step(0, 6, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
  CHECK(find<form_generation>(formed)->released == std::vector<worker_id>{{3}});
  // Nobody waits whom the next boundary would let in.
  CHECK_FALSE(find<send_command>(formed));
}

TEST_CASE("if all who had the state die while a joiner waits for it, the run starts again") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(gather(group, {0}, 6, 2)));
  CHECK(find<restart_run>(group.on_ended(killed(0))) == nullptr);
  auto without_state = asks_for_place(2);
  without_state.generation = {3};
  CHECK(find<restart_run>(group.on_report(without_state)));
}

TEST_CASE("joiners that are under way at the end are not waited for") {
  auto completed = in_loop(2);
  completed.on_started({{{2}, {2}, 0, 0, 1}});
  static_cast<void>(completed.on_finished(finished(0)));
  CHECK(find<release_all>(completed.on_finished(finished(1))));
  CHECK(completed.on_ended({run, {0}, 0, "exit code 0", {}}).empty());
  const auto over = completed.on_ended({run, {1}, 0, "exit code 0", {}});
  REQUIRE(find<conclude>(over));
  CHECK(find<conclude>(over)->status == run_status::completed);

  auto failed = in_loop(2);
  failed.on_started({{{2}, {2}, 0, 0, 1}});
  static_cast<void>(failed.on_finished(throws(0, 0, "out of range")));
  const auto end = failed.on_finished(cut_off(1, 0));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "out of range");
}
