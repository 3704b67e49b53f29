#include <troupe/actors/decisions/control_state.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto run = run_id{"r"};
const auto now = run_time{} + std::chrono::hours{1};

/// Three members of generation 4, on two nodes.
control_state kept() {
  control_state result;
  result.attempt = 2;
  result.generation = {4};
  result.began_at = {10};
  for (std::uint32_t i = 0; i < 3; ++i)
    result.members.push_back({{worker_id{i + 5}, rank_id{i}, i / 2, i % 2, 2}, step_id{10}, 0});
  result.plans.push_back({run, {1}, {5}, 100, 64, 1797, "digits", "w f32 [3]", 0, {}});
  result.commands = 7;
  result.outstanding = {{run, 7, checkpoint_command{}}};
  result.workers = 3;
  return result;
}

worker_beat beat_of(std::uint32_t worker, std::uint64_t generation) {
  worker_beat result;
  result.run = run;
  result.worker = {worker};
  result.generation = {generation};
  return result;
}

run_coordinator taken_over(const control_state& from, std::uint32_t max_failures = 100) {
  run_coordinator::settings config;
  config.run = run;
  config.workers = {3, 3};
  config.failure.max_failures = max_failures;
  return {config, from, now};
}

regroup_report report_of(std::uint32_t worker, std::uint64_t generation, std::uint64_t committed,
                         bool holds_gradient = false) {
  return {run,
          {generation},
          {worker},
          1,
          worker_position::in_step{{{committed}, 6, 0}, holds_gradient},
          {errc::aborted, "the driver was started again"}};
}

template <class Action>
const Action* find(const run_actions& actions) {
  for (const auto& x : actions)
    if (const auto* found = std::get_if<Action>(&x.what))
      return found;
  return nullptr;
}

} // namespace

TEST_CASE("processes that had no place are told from members, and a worker's word on its generation counts") {
  std::map<std::uint32_t, std::vector<worker_beat>> living;
  living[0] = {beat_of(5, 4), beat_of(6, 3), beat_of(9, 0)};
  living[1] = {beat_of(8, 5)};
  const auto [state, others] = sort_survivors(kept(), living);
  // Nobody has said that the others have ended.
  CHECK(state.members.size() == 4);
  CHECK(state.members.back().place.worker == worker_id{8});
  CHECK(state.members.back().place.node == 1);
  CHECK(state.generation == generation_id{5});
  REQUIRE(others.size() == 1);
  CHECK(others[0].worker == worker_id{9});
  CHECK(may_be_member(kept(), beat_of(6, 3)));
  CHECK(may_be_member(kept(), beat_of(8, 5)));
  CHECK_FALSE(may_be_member(kept(), beat_of(9, 4)));
}

TEST_CASE("a run that is taken over goes on in a generation above any that was, whatever its members have heard") {
  auto group = taken_over(kept());
  CHECK(group.attempt() == 2);
  CHECK(group.state_to_keep() == kept());
  const auto begins = group.on_adopted({}, now);
  REQUIRE(find<abort_generation>(begins));
  CHECK(find<abort_generation>(begins)->generation == generation_id{4});
  CHECK(find<start_more>(begins) == nullptr);
  // One has not heard of generation 4, and one has committed a step that the others have to apply.
  CHECK(group.on_report(report_of(5, 3, 20, true), now).empty());
  CHECK(group.on_report(report_of(6, 4, 21), now).empty());
  const auto formed = group.on_report(report_of(7, 4, 20, true), now);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->record.generation == generation_id{5});
  CHECK(find<form_generation>(formed)->record.attempt == 2);
  CHECK(find<form_generation>(formed)->decision.commit_point == step_id{21});
  CHECK(find<form_generation>(formed)->places.size() == 3);
  // From here on generations count as ever.
  CHECK(find<refuse_report>(group.on_report(report_of(5, 4, 21), now)));
  // Commands are numbered on.
  const auto wish = group.on_checkpoint_request();
  REQUIRE(find<send_command>(wish));
  CHECK(find<send_command>(wish)->command.sequence == 8);
}

TEST_CASE("processes without a place are ended, and their places given to others") {
  auto state = kept();
  state.workers = 4;
  auto group = taken_over(state);
  const auto begins = group.on_adopted({{worker_id{9}, rank_id{3}, 0, 0, 1}}, now);
  REQUIRE(find<fence_worker>(begins));
  CHECK(find<fence_worker>(begins)->worker == worker_id{9});
  REQUIRE(find<start_more>(begins));
  CHECK(find<start_more>(begins)->count == 1);
}

TEST_CASE("members that have ended meanwhile count as failures, beside those before") {
  auto state = kept();
  state.failures = {2, state.began_at, {1}};
  auto group = taken_over(state, 2);
  group.introduce({6}, "b", 66);
  std::ignore = group.on_adopted({}, now);
  const auto lost = group.on_ended({run, {6}, 137, "it ended while the run had no driver", {}});
  REQUIRE(find<abort_all>(lost));
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].host == "b");
  CHECK(group.failures()[0].pid == 66);
}

TEST_CASE("a member that the driver before gave up is no reason to restart") {
  auto group = taken_over(kept());
  std::ignore = group.on_adopted({}, now);
  worker_finished end;
  end.run = run;
  end.generation = {3};
  end.worker = {5};
  end.step = {19};
  end.reason = {errc::stale_generation, "this worker was given up"};
  end.needs_restart = true;
  const auto left = group.on_finished(end);
  CHECK(find<restart_run>(left) == nullptr);
  CHECK(find<release_one>(left));
  CHECK(group.on_report(report_of(6, 4, 20), now).empty());
  const auto formed = group.on_report(report_of(7, 4, 20), now);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places.size() == 2);
}

TEST_CASE("a plan that was accepted before is answered at once, and another one refused") {
  auto group = taken_over(kept());
  std::ignore = group.on_adopted({}, now);
  for (auto worker : {5, 6, 7})
    std::ignore = group.on_report(report_of(static_cast<std::uint32_t>(worker), 4, 20), now);
  REQUIRE(group.training());
  auto plan = kept().plans.front();
  plan.generation = {5};
  plan.worker = {6};
  const auto same = group.on_plan(plan, now);
  REQUIRE(find<accept_plan_of>(same));
  CHECK(find<accept_plan_of>(same)->worker == worker_id{6});
  plan.worker = {7};
  plan.data_fingerprint = "letters";
  const auto other = group.on_plan(plan, now);
  CHECK(find<refuse_plans>(other));
  CHECK(find<abort_all>(other));
}

TEST_CASE("a run that was paused stays paused") {
  auto state = kept();
  state.asked = run_course::request::pause;
  auto group = taken_over(state);
  std::ignore = group.on_adopted({}, now);
  run_actions last;
  for (auto worker : {5, 6, 7}) {
    auto report = report_of(static_cast<std::uint32_t>(worker), 4, 20);
    report.position = worker_position::between_steps{{{20}, 6, 0}};
    last = group.on_report(report, now);
  }
  CHECK(find<hold>(last));
  CHECK(group.held());
  CHECK(find<form_generation>(group.on_resume()));
}
