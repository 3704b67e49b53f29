#include <troupe/actors/decisions/worker_protocol.hpp>

#include <doctest/doctest.h>

#include <utility>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

group_place place_of(std::uint64_t generation, std::uint32_t rank = 1, std::uint32_t world_size = 2) {
  group_place result;
  result.generation = {generation};
  result.rank = {rank};
  result.world_size = world_size;
  return result;
}

worker_protocol member(std::uint64_t generation = 1, std::uint64_t restored = 0) {
  begin_training begin;
  begin.run = {"r"};
  begin.worker = {7};
  begin.place = place_of(generation);
  begin.settings.shards = 8;
  begin.resume.step = {restored};
  return worker_protocol{begin};
}

worker_protocol joiner(std::vector<std::vector<std::vector<double>>> evaluations = {{}}) {
  begin_training begin;
  begin.run = {"r"};
  begin.worker = {8};
  begin.earlier_evaluations = std::move(evaluations);
  return worker_protocol{begin};
}

barrier_words all_at(step_id step, std::uint64_t commands = 0) {
  return worker_protocol::words_for(step, commands, 17, 0, false);
}

void do_step(worker_protocol& who, std::uint64_t number) {
  const auto step = step_id{number};
  REQUIRE(who.begin_step(step));
  REQUIRE(who.on_reduced(step));
  REQUIRE(who.on_barrier(step, all_at(step)) == barrier_outcome::committed);
  who.on_applied(step);
}

next_generation next_of(std::uint64_t generation, std::uint64_t commit_point, std::vector<rank_id> joiners = {}) {
  member_place next;
  next.place = place_of(generation);
  next.commit_point = {commit_point};
  next.joiners = std::move(joiners);
  return {next};
}

abort_training abort_of(std::uint64_t generation, std::string why = "worker 3 is lost") {
  return {{"r"}, {generation}, {errc::aborted, std::move(why)}};
}

template <class Action>
bool is(const worker_action& action) {
  return std::holds_alternative<Action>(action.what);
}

using position = decltype(regroup_report::position);

const staging_place group_seven{7, {3}, {2}, 2, 1, transport_kind::tcp, {}, "10.0.0.1"};

} // namespace

TEST_CASE("a step is committed when its barrier is complete") {
  auto who = member();
  CHECK(who.has_state());
  do_step(who, 1);
  CHECK(who.committed() == step_id{1});
  CHECK(who.reduced() == step_id{1});
  CHECK(who.step() == step_id{1});
}

TEST_CASE("the shards are split evenly among the ranks of each generation") {
  auto who = member();
  CHECK(who.ownership() == std::vector<shard_range>{{0, 4}, {4, 8}});
  CHECK(who.shards() == shard_range{4, 8});
  REQUIRE(who.on_abort(abort_of(1)) == abort_effect::ends_group);
  who.begin_regroup();
  static_cast<void>(who.report({}));
  member_place next;
  next.place = place_of(2, 2, 4);
  REQUIRE(is<form_group>(who.on_next({next})));
  CHECK(who.ownership() == std::vector<shard_range>{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(who.shards() == shard_range{4, 6});
}

TEST_CASE("an abort before the barrier leaves the step open, and the report says so") {
  auto who = member();
  do_step(who, 1);
  REQUIRE(who.begin_step({2}));
  REQUIRE(who.on_reduced({2}));
  CHECK(who.on_abort(abort_of(1)) == abort_effect::ends_group);
  CHECK(who.on_barrier({2}, all_at({2})) == barrier_outcome::fenced);
  CHECK_FALSE(who.begin_step({2}));
  who.begin_regroup();
  const auto report = who.report({});
  CHECK(report.generation == generation_id{1});
  CHECK(report.worker == worker_id{7});
  CHECK(report.position == position{worker_position::in_step{{{1}, 0, 0}, true}});
}

TEST_CASE("an abort after the barrier finds the step committed") {
  auto who = member();
  do_step(who, 1);
  CHECK(who.on_abort(abort_of(1)) == abort_effect::ends_group);
  CHECK_FALSE(who.begin_step({2}));
  who.begin_regroup();
  const auto report = who.report({});
  CHECK(report.position == position{worker_position::elsewhere{{{1}, 0, 0}}});
}

TEST_CASE("a member without the barrier applies the step that another has committed") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  REQUIRE(who.on_reduced({1}));
  who.begin_regroup();
  CHECK(who.report({}).position == position{worker_position::in_step{{}, true}});
  CHECK(is<form_group>(who.on_next(next_of(2, 1))));
  CHECK(who.committed() == step_id{1});
  CHECK(who.generation() == generation_id{2});
  who.on_formed();
  CHECK(who.begin_step({2}));
}

TEST_CASE("a step that no member has committed is computed again") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  REQUIRE(who.on_reduced({1}));
  who.begin_regroup();
  CHECK(is<form_group>(who.on_next(next_of(2, 0))));
  CHECK(who.committed() == step_id{0});
  CHECK(who.reduced() == step_id{0});
  CHECK(who.begin_step({1}));
}

TEST_CASE("ranks at different steps, or with different states, do not commit") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  REQUIRE(who.on_reduced({1}));
  auto words = all_at({1});
  words.values[barrier_words::step] = 2;
  CHECK(who.on_barrier({1}, words) == barrier_outcome::steps_differ);
  words = all_at({1});
  words.values[barrier_words::digest] = 18;
  CHECK(who.on_barrier({1}, words) == barrier_outcome::replicas_differ);
  CHECK(who.committed() == step_id{0});
}

TEST_CASE("an abort of a generation that is still to come has this worker report again there") {
  auto who = member();
  do_step(who, 1);
  who.begin_regroup();
  CHECK(who.on_abort(abort_of(2, "worker 4 is lost")) == abort_effect::ends_group);
  const auto action = who.on_next(next_of(2, 1));
  CHECK(is<report_again>(action));
  CHECK(action.why.find("worker 4 is lost") != std::string::npos);
  CHECK(who.report({}).generation == generation_id{2});
  CHECK_FALSE(who.report({}).is<worker_position::in_step>());
  CHECK(is<form_group>(who.on_next(next_of(3, 1))));
}

TEST_CASE("an abort of a generation that this worker has yet to hear of ends its own") {
  auto who = member(2);
  CHECK(who.begin_step({1}));
  CHECK(who.on_abort(abort_of(3, "the driver was started again")) == abort_effect::ends_group);
  CHECK(who.abort_reason()->message == "the driver was started again");
  CHECK(who.report({}).generation == generation_id{2});
  // A joiner has no group yet.
  auto joiner = member(0);
  CHECK(joiner.on_abort(abort_of(3)) == abort_effect::none);
}

TEST_CASE("an abort of an old generation is ignored, and the first reason stays") {
  auto who = member(4);
  CHECK(who.on_abort(abort_of(3)) == abort_effect::none);
  CHECK(who.begin_step({1}));
  CHECK(who.on_abort(abort_of(4, "first")) == abort_effect::ends_group);
  CHECK(who.on_abort(abort_of(4, "second")) == abort_effect::ends_group);
  CHECK(who.abort_reason()->message == "first");
  CHECK(who.why_it_ends({errc::aborted, "the run is ending"}).message == "first");
  CHECK(who.why_it_ends({errc::unreachable, "the driver is gone"}).message == "the driver is gone");
}

TEST_CASE("errors that the loss of a member does not explain end the run") {
  auto who = member();
  CHECK(who.is_loss_of_group({errc::aborted, ""}));
  CHECK(who.is_loss_of_group({errc::stale_generation, ""}));
  CHECK_FALSE(who.is_loss_of_group({errc::unreachable, ""}));
  CHECK(who.on_abort(abort_of(1)) == abort_effect::ends_group);
  CHECK(who.is_loss_of_group({errc::unreachable, ""}));
  CHECK_FALSE(who.is_loss_of_group({errc::mismatch, ""}));
  CHECK_FALSE(who.is_loss_of_group({errc::user_error, ""}));
}

TEST_CASE("a peer that cannot be reached is tried a few times, counted since the last committed step") {
  auto who = member();
  const auto unreachable = error{errc::unreachable, "no route"};
  for (int i = 0; i < 4; ++i)
    CHECK(who.may_form_again(unreachable));
  CHECK_FALSE(who.may_form_again(unreachable));
  do_step(who, 1);
  CHECK(who.may_form_again(unreachable));
}

TEST_CASE("commands take effect at the boundary whose barrier agreed on them, in their order") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  REQUIRE(who.on_reduced({1}));
  REQUIRE(who.on_barrier({1}, all_at({1}, 3)) == barrier_outcome::committed);
  const auto due = who.due_commands();
  REQUIRE(due);
  CHECK(due->after == 0);
  CHECK(due->up_to == 3);
  const auto actions = who.on_boundary({{{"r"}, 1, checkpoint_command{}},
                                        {{"r"}, 2, stage_command{{1}, {0}, transport_kind::shm, 0}},
                                        {{"r"}, 3, regroup_command{{1}}}},
                                       step_end::goes_on);
  REQUIRE(actions.size() == 3);
  const auto* save = std::get_if<consider_checkpoint>(&actions[0].what);
  REQUIRE(save);
  CHECK(save->is_asked);
  CHECK(save->regroups);
  CHECK_FALSE(save->is_last);
  CHECK(std::get<stage_state>(actions[1].what).number == 2);
  CHECK(std::get<regroup_here>(actions[2].what).generation == generation_id{1});
  CHECK_FALSE(who.due_commands());
}

TEST_CASE("a stop comes after its checkpoint, and nothing is staged for joiners any more") {
  auto who = member();
  const auto actions = who.on_boundary(
      {{{"r"}, 1, stage_command{{1}, {0}, transport_kind::shm, 0}}, {{"r"}, 2, stop_command{}}}, step_end::goes_on);
  REQUIRE(actions.size() == 2);
  CHECK(std::get<consider_checkpoint>(actions[0].what).is_last);
  CHECK(std::holds_alternative<stop_here>(actions[1].what));
}

TEST_CASE("a step after which the configuration stops the run is followed by its checkpoint, and by no loop") {
  auto who = member();
  REQUIRE(who.enter_loop());
  who.on_plan_accepted();
  who.begin_steps();
  const auto actions = who.on_boundary({}, step_end::stops);
  REQUIRE(actions.size() == 2);
  CHECK(std::get<consider_checkpoint>(actions[0].what).is_last);
  CHECK(std::holds_alternative<stop_here>(actions[1].what));
  who.end_steps();
  CHECK(who.is_stopped());
  CHECK_FALSE(who.enter_loop());
}

TEST_CASE("a stop ends the loops after the one that it was asked in, too, even if that was over") {
  for (auto end : {step_end::goes_on, step_end::last_step}) {
    auto who = member();
    REQUIRE(who.enter_loop());
    who.on_plan_accepted();
    who.begin_steps();
    static_cast<void>(who.on_boundary({{{"r"}, 1, stop_command{}}}, end));
    who.end_steps();
    CHECK(who.is_stopped());
    CHECK_FALSE(who.enter_loop());
  }
}

TEST_CASE("a run that is finished takes its last checkpoint, and nobody joins or leaves, nor is it stopped") {
  auto who = member();
  REQUIRE(who.enter_loop());
  who.on_plan_accepted();
  who.begin_steps();
  const auto actions = who.on_boundary({{{"r"}, 1, stage_command{{1}, {0}, transport_kind::shm, 0}},
                                        {{"r"}, 2, regroup_command{{1}}},
                                        {{"r"}, 3, checkpoint_command{}}},
                                       step_end::finishes_run);
  REQUIRE(actions.size() == 1);
  const auto& save = std::get<consider_checkpoint>(actions[0].what);
  CHECK(save.is_last);
  CHECK(save.finishes_run);
  who.end_steps();
  CHECK(who.is_finished());
  CHECK_FALSE(who.is_stopped());
  CHECK_FALSE(who.enter_loop());
}

TEST_CASE("a run that was finished before its checkpoint enters its first loop, does no step, and skips the others") {
  begin_training begin;
  begin.place.generation = {1};
  begin.place.world_size = 1;
  begin.resume.is_finished = true;
  auto who = worker_protocol{begin};
  CHECK(who.is_finished());
  CHECK(who.enter_loop());
  CHECK_FALSE(who.enter_loop());
}

TEST_CASE("a command to regroup is of no effect in another generation") {
  auto who = member(2);
  const auto actions = who.on_boundary({{{"r"}, 1, regroup_command{{1}}}}, step_end::goes_on);
  REQUIRE(actions.size() == 1);
  CHECK_FALSE(std::get<consider_checkpoint>(actions[0].what).regroups);
}

TEST_CASE("a report at a boundary says that joiners can be let in, however often it is repeated") {
  auto who = member();
  do_step(who, 1);
  who.begin_regroup_between_steps();
  CHECK(who.report({}).is<worker_position::between_steps>());
  REQUIRE(is<form_group>(who.on_next(next_of(2, 1))));
  CHECK(who.on_abort(abort_of(2)) == abort_effect::ends_group);
  who.begin_regroup_between_steps();
  CHECK(who.report({}).is<worker_position::between_steps>());
  REQUIRE(is<form_group>(who.on_next(next_of(3, 1))));
  who.on_formed();
  who.begin_regroup();
  CHECK(who.report({}).is<worker_position::elsewhere>());
}

TEST_CASE("a joiner that gets the state with its place has none before") {
  auto who = joiner();
  CHECK(who.enter_loop());
  CHECK_FALSE(who.has_state());
  who.begin_regroup();
  auto report = who.report({});
  CHECK(report.position == position{worker_position::without_state{0}});
  CHECK(report.generation == generation_id{});
  REQUIRE(is<form_group>(who.on_next(next_of(3, 9, {{1}}))));
  CHECK_FALSE(who.has_state());
  CHECK(who.step() == step_id{9});
  who.on_state_received();
  who.on_formed();
  CHECK(who.has_state());
  CHECK(who.begin_step({10}));
}

TEST_CASE("a joiner whose group is lost before it has the state reports without it") {
  auto who = joiner();
  REQUIRE(is<form_group>(who.on_next(next_of(3, 9, {{1}}))));
  CHECK(who.on_abort(abort_of(3)) == abort_effect::ends_group);
  who.begin_regroup();
  CHECK(who.report({}).is<worker_position::without_state>());
  CHECK(who.report({}).generation == generation_id{3});
}

TEST_CASE("a member whose run ends is asked to save the state that it has") {
  auto who = member();
  who.begin_regroup();
  const auto action = who.on_next({save_and_leave{{errc::aborted, "the run is ending"}, {}}});
  REQUIRE(is<save_last_copy>(action));
  CHECK(std::get<save_last_copy>(action.what).reason == error{errc::aborted, "the run is ending"});
  CHECK(who.has_state());
  CHECK(who.committed() == step_id{});
}

TEST_CASE("a member whose training function throws says so, and does no step any more") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  const auto report = who.report_throw({errc::user_error, "out of range"});
  REQUIRE(report.is<worker_position::thrown>());
  CHECK(report.progress()->committed == step_id{});
  CHECK(report.reason.message == "out of range");
  CHECK_FALSE(who.on_reduced({1}));
  CHECK_FALSE(who.begin_step({1}));
}

TEST_CASE("a member whose run ends applies the step that counts before it saves") {
  auto who = member();
  REQUIRE(who.begin_step({1}));
  REQUIRE(who.on_reduced({1}));
  who.begin_regroup();
  REQUIRE(is<save_last_copy>(who.on_next({save_and_leave{{errc::aborted, "the run is ending"}, {1}}})));
  CHECK(who.committed() == step_id{1});
  CHECK(who.step() == step_id{});
}

TEST_CASE("a joiner that has lost its first place tells its next plan as one that has none") {
  auto who = joiner();
  REQUIRE(is<form_group>(who.on_next(next_of(3, 9, {{1}}))));
  CHECK(who.on_abort(abort_of(3)) == abort_effect::ends_group);
  who.begin_regroup();
  REQUIRE(is<skip_loop_body>(who.on_next({loop_completed{}})));
  run_plan plan;
  who.complete(plan);
  CHECK(plan.generation == generation_id{});
}

TEST_CASE("a joiner follows the members, says once when it is close, and is one of them at their boundary") {
  auto who = joiner();
  REQUIRE(is<follow_members>(who.on_next({group_seven})));
  CHECK(who.follows());
  who.on_staged_state({20});
  CHECK_FALSE(who.judge_progress({21}, {30}, std::nullopt));
  CHECK_FALSE(who.judge_progress({21}, {30}, 100ms));
  who.on_repeated({21});
  const auto told = who.judge_progress({22}, {30}, 1ms);
  REQUIRE(told);
  CHECK(told->staging == 7);
  CHECK(told->generation == generation_id{3});
  CHECK(told->step == step_id{22});
  CHECK_FALSE(who.judge_progress({23}, {23}, 1ms));
  who.on_repeated({22});
  CHECK_FALSE(who.on_end_of_staging({23}, 4, 2));
  REQUIRE(who.on_end_of_staging({22}, 4, 2));
  CHECK(who.has_caught_up());
  who.begin_regroup();
  const auto report = who.report({});
  CHECK(report.position == position{worker_position::caught_up{{{22}, 4, 2}, 7}});
  CHECK(report.generation == generation_id{3});
  REQUIRE(is<form_group>(who.on_next(next_of(4, 22))));
  CHECK(who.has_state());
  CHECK(who.begin_step({23}));
}

TEST_CASE("a joiner that has lost the members reports without state, and in which group that was") {
  auto who = joiner();
  REQUIRE(is<follow_members>(who.on_next({group_seven})));
  who.on_staged_state({20});
  CHECK(who.on_abort(abort_of(3)) == abort_effect::ends_staging);
  CHECK(who.staging_abort_reason());
  who.begin_regroup();
  const auto report = who.report({});
  CHECK(report.position == position{worker_position::without_state{7}});
}

TEST_CASE("a joiner skips loops that the members have completed, with what they found there") {
  auto who = joiner({{{0.5}}, {{1.5}, {2.5}}});
  // Before its first loop.
  CHECK(std::get<evaluation_known>(who.plan_evaluation()).values == std::vector{0.5});
  CHECK_THROWS_AS(static_cast<void>(who.plan_evaluation()), exception);
  CHECK_FALSE(who.enter_loop());
  CHECK(std::get<evaluation_known>(who.plan_evaluation()).values == std::vector{1.5});
  CHECK(std::get<evaluation_known>(who.plan_evaluation()).values == std::vector{2.5});
  CHECK(who.enter_loop());
  who.on_plan_accepted();
  CHECK(is<skip_loop_body>(who.on_next({loop_completed{{{3.5}}}})));
  CHECK(std::get<evaluation_known>(who.plan_evaluation()).values == std::vector{3.5});
  run_plan plan;
  who.complete(plan);
  CHECK(plan.loop == 1);
  CHECK(plan.evaluations == std::vector<std::vector<double>>{{3.5}});
}

TEST_CASE("an evaluation that another member finished is not done again") {
  auto who = member();
  CHECK(std::get<evaluate_now>(who.plan_evaluation()).number == 1);
  who.begin_regroup();
  REQUIRE(is<form_group>(who.on_next(next_of(2, 0))));
  CHECK_FALSE(who.is_evaluated(1));
  who.on_evaluated(1, {0.25});
  CHECK(who.is_evaluated(1));
  CHECK(who.last_evaluation() == std::vector{0.25});
  CHECK(who.report({}).progress()->evaluations == 1);
}

TEST_CASE("what is compared at the first barrier of a generation is what the driver says") {
  auto who = member();
  CHECK(who.comparison() == state_comparison::whole);
  do_step(who, 1);
  CHECK(who.comparison() == state_comparison::slice);
  auto next = next_of(2, 1);
  std::get<member_place>(next.what).comparison = state_comparison::nothing;
  who.begin_regroup();
  REQUIRE(is<form_group>(who.on_next(next)));
  CHECK(who.comparison() == state_comparison::nothing);
  auto alone = next_of(3, 1);
  std::get<member_place>(alone.what).place.world_size = 1;
  std::get<member_place>(alone.what).comparison = state_comparison::whole;
  REQUIRE(is<form_group>(who.on_next(alone)));
  CHECK(who.comparison() == state_comparison::nothing);
}

TEST_CASE("a worker that is released leaves the run") {
  auto who = member();
  CHECK(is<leave_run>(who.on_next({released{}})));
}

} // namespace troupe::actors
