#include <troupe/actors/regroup.hpp>
#include <troupe/actors/run_coordinator.hpp>

#include <algorithm>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto run = run_id{"r"};

regroup_report report_of(std::uint32_t worker, std::uint64_t passed, bool holds_next = false,
                         std::uint64_t generation = 1) {
  regroup_report result;
  result.run = run;
  result.generation = {generation};
  result.worker = {worker};
  result.passed = {passed};
  result.holds_next = holds_next;
  result.commands_agreed = passed * 10;
  return result;
}

/// Workers on two nodes, all in training.
run_coordinator training(std::uint32_t workers, failure_config failure = {}) {
  run_coordinator::settings config;
  config.run = run;
  config.failure = failure;
  for (std::uint32_t i = 0; i < workers; ++i)
    config.places.push_back({{i}, {i}, i / 2, i % 2, 2});
  auto result = run_coordinator{config};
  for (std::uint32_t i = 0; i < workers; ++i)
    static_cast<void>(result.on_ready({run, {i}, 100 + i, "host", "", ""}));
  REQUIRE(result.training());
  return result;
}

worker_ended killed(std::uint32_t worker) {
  return {run, {worker}, 137, "killed by signal 9 (SIGKILL)", {}};
}

worker_finished finished(std::uint32_t worker) {
  return {run, {1}, {worker}, {10}, {}, false, "state"};
}

template <class Action>
const Action* find(const run_actions& actions) {
  for (const auto& x : actions)
    if (const auto* found = std::get_if<Action>(&x.what))
      return found;
  return nullptr;
}

} // namespace

TEST_CASE("if one has passed the step, all apply it") {
  const auto reports = std::vector{report_of(0, 6, true), report_of(1, 7), report_of(2, 6, true)};
  const auto decision = decide_regroup(reports);
  REQUIRE(decision);
  CHECK(decision->settled == step_id{7});
  CHECK(decision->commands_agreed == 70);
  CHECK(decision->reason.find("worker 1 has passed step 7") != std::string::npos);
}

TEST_CASE("if nobody has passed the step, all compute it again, whoever holds its gradient") {
  const auto decision = decide_regroup(std::vector{report_of(0, 6, true), report_of(1, 6), report_of(2, 6)});
  REQUIRE(decision);
  CHECK(decision->settled == step_id{6});
  CHECK(decision->commands_agreed == 60);
  CHECK(decision->reason.find("nobody has passed step 7") != std::string::npos);
}

TEST_CASE("reports that cannot be are not decided about") {
  CHECK_FALSE(decide_regroup({}));
  CHECK(decide_regroup(std::vector{report_of(0, 7), report_of(1, 6)}).error().code == errc::internal);
  CHECK(decide_regroup(std::vector{report_of(0, 8), report_of(1, 6, true)}).error().code == errc::internal);
  auto behind = report_of(1, 7);
  auto ahead = report_of(0, 7);
  ahead.evaluations = 2;
  CHECK(decide_regroup(std::vector{ahead, behind}).error().code == errc::internal);
}

TEST_CASE("an evaluation that one has finished is not done again") {
  auto ahead = report_of(2, 7);
  ahead.evaluations = 1;
  const auto decision = decide_regroup(std::vector{report_of(0, 7), ahead});
  REQUIRE(decision);
  CHECK(decision->evaluations_differ);
  CHECK(decision->evaluations == 1);
  CHECK(decision->evaluation_source == worker_id{2});
  CHECK_FALSE(decide_regroup(std::vector{ahead})->evaluations_differ);
}

TEST_CASE("who is left when a worker is killed forms a generation once all have reported") {
  auto group = training(4);
  const auto first = group.on_ended(killed(1));
  REQUIRE(find<abort_generation>(first));
  CHECK(find<abort_generation>(first)->reason.code == errc::aborted);
  CHECK(group.goes_on());
  CHECK(group.on_report(report_of(0, 3)).empty());
  CHECK(group.on_report(report_of(3, 3)).empty());
  CHECK(group.awaited_reports() == "worker 2 (rank 2) on host");
  const auto last = group.on_report(report_of(2, 3, true));
  REQUIRE(find<form_generation>(last));
  const auto& places = find<form_generation>(last)->places;
  // Ranks close up; the worker that is alone on its node says so.
  CHECK(places == std::vector<worker_place>{{{0}, {0}, 0, 0, 1}, {{2}, {1}, 1, 0, 2}, {{3}, {2}, 1, 1, 2}});
  CHECK(find<form_generation>(last)->decision.settled == step_id{3});
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].worker == worker_id{1});
  CHECK(group.training());
  CHECK(group.awaited_reports().empty());
}

TEST_CASE("one that is lost while others report is not waited for, down to one") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(report_of(1, 3)).empty());
  auto formed = group.on_ended(killed(2));
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places == std::vector<worker_place>{{{1}, {0}, 0, 0, 1}});
  // And again in the new generation: nobody is left.
  auto end = group.on_ended(killed(1));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->status == run_status::failed);
  CHECK(group.failures().size() == 3);
}

TEST_CASE("a worker that finds its group gone before its node tells why begins the regroup") {
  auto group = training(3, {1, 1h});
  auto told = report_of(0, 3);
  told.reason = {errc::aborted, "lost rank 2"};
  CHECK(find<abort_generation>(group.on_report(told)));
  // The loss behind it is the same failure, and the budget holds.
  CHECK(find<conclude>(group.on_ended(killed(2))) == nullptr);
  CHECK(find<form_generation>(group.on_report(report_of(1, 3))));
}

TEST_CASE("a lost node's workers are lost together") {
  auto group = training(4);
  CHECK(group.on_report(report_of(0, 3)).size() == 1);
  CHECK(group.on_report(report_of(2, 3)).empty());
  CHECK(group.on_report(report_of(3, 3)).empty());
  const auto actions = group.on_node_lost(1, "10.0.0.2:4000");
  CHECK(find<form_generation>(actions) == nullptr);
  const auto formed = group.on_report(report_of(1, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places.size() == 2);
  CHECK(group.failures().size() == 2);
}

TEST_CASE("a worker that has finished is no loss, and reports nothing") {
  auto group = training(3);
  CHECK(group.on_finished(finished(0)).empty());
  CHECK(group.on_ended(killed(0)).empty());
  CHECK(group.failures().size() == 1);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  CHECK(find<form_generation>(group.on_report(report_of(2, 10))));
  CHECK(find<release_all>(group.on_finished(finished(2))));
}

TEST_CASE("failures beyond the budget end the run, and old ones are forgotten") {
  const auto start = run_coordinator::time{} + 1h;
  auto group = training(8, {2, 10s});
  for (std::uint32_t lost = 0; lost < 3; ++lost) {
    // Never more than two within ten seconds.
    CHECK(find<conclude>(group.on_ended(killed(lost), start + lost * 6s)) == nullptr);
    for (std::uint32_t i = lost + 1; i < 8; ++i)
      static_cast<void>(group.on_report(report_of(i, 3)));
    REQUIRE(group.training());
  }
  CHECK(find<abort_generation>(group.on_ended(killed(3), start + 19s)));
  const auto over = group.on_ended(killed(4), start + 20s);
  CHECK(find<abort_all>(over));
  CHECK_FALSE(group.goes_on());
}

TEST_CASE("contradicting reports end the run") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(report_of(1, 3)).empty());
  CHECK(find<abort_all>(group.on_report(report_of(2, 5))));
}

TEST_CASE("where the training functions do not survive a loss, that loss is the cause") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  const auto cut_off = [](std::uint32_t worker) {
    return worker_finished{run, {1}, {worker}, {3}, {errc::aborted, "lost rank 1"}, false, ""};
  };
  CHECK(find<abort_all>(group.on_finished(cut_off(0))));
  const auto over = group.on_finished(cut_off(2));
  REQUIRE(find<conclude>(over));
  CHECK(find<conclude>(over)->reason.code == errc::worker_lost);
  REQUIRE(group.failures().size() == 3);
  CHECK_FALSE(group.failures()[0].consequence);
  CHECK(group.failures()[1].consequence);
  CHECK(group.failures()[2].consequence);
}
