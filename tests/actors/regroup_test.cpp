#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("if one has committed the step, all apply it") {
  const auto reports = std::vector{holding(0, 6), elsewhere(1, 7), holding(2, 6)};
  const auto decision = decide_regroup(reports);
  REQUIRE(decision);
  CHECK(decision->commit_point == step_id{7});
  CHECK(decision->commands_agreed == 70);
  CHECK(decision->reason.find("worker 1 has committed step 7") != std::string::npos);
}

TEST_CASE("if nobody has committed the step, all compute it again, whoever holds its gradient") {
  const auto decision = decide_regroup(std::vector{holding(0, 6), elsewhere(1, 6), elsewhere(2, 6)});
  REQUIRE(decision);
  CHECK(decision->commit_point == step_id{6});
  CHECK(decision->commands_agreed == 60);
  CHECK(decision->reason.find("nobody has committed step 7") != std::string::npos);
}

TEST_CASE("reports that cannot be are not decided about") {
  CHECK_FALSE(decide_regroup({}));
  CHECK_FALSE(decide_regroup(std::vector{elsewhere(0, 7), asks_for_place(1)}));
  CHECK(decide_regroup(std::vector{elsewhere(0, 7), elsewhere(1, 6)}).error().code == errc::internal);
  CHECK(decide_regroup(std::vector{elsewhere(0, 8), holding(1, 6)}).error().code == errc::internal);
  const auto ahead = report_of(0, worker_position::elsewhere{after(7, 2)});
  CHECK(decide_regroup(std::vector{ahead, elsewhere(1, 7)}).error().code == errc::internal);
}

TEST_CASE("an evaluation that one has finished is not done again") {
  const auto ahead = report_of(2, worker_position::elsewhere{after(7, 1)});
  const auto decision = decide_regroup(std::vector{elsewhere(0, 7), ahead});
  REQUIRE(decision);
  CHECK(decision->evaluations == 1);
  CHECK(decision->evaluation_source == worker_id{2});
  CHECK_FALSE(decide_regroup(std::vector{ahead})->evaluation_source);
}

TEST_CASE("who is left when a worker is killed forms a generation once all have reported") {
  auto group = training(4);
  const auto first = group.on_ended(killed(1));
  REQUIRE(find<abort_generation>(first));
  CHECK(find<abort_generation>(first)->reason.code == errc::aborted);
  CHECK(group.goes_on());
  CHECK(group.on_report(elsewhere(0, 3)).empty());
  CHECK(group.on_report(elsewhere(3, 3)).empty());
  CHECK(group.awaited_reports() == "worker 2 (rank 2) on host");
  const auto last = group.on_report(holding(2, 3));
  REQUIRE(find<form_generation>(last));
  const auto& places = find<form_generation>(last)->places;
  // Ranks close up; the worker that is alone on its node says so.
  CHECK(places == std::vector<worker_place>{{{0}, {0}, 0, 0, 1}, {{2}, {1}, 1, 0, 2}, {{3}, {2}, 1, 1, 2}});
  CHECK(find<form_generation>(last)->decision.commit_point == step_id{3});
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].worker == worker_id{1});
  CHECK(group.training());
  CHECK(group.awaited_reports().empty());
}

TEST_CASE("one that is lost while others report is not waited for, down to one") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(elsewhere(1, 3)).empty());
  auto formed = group.on_ended(killed(2));
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places == std::vector<worker_place>{{{1}, {0}, 0, 0, 1}});
  // And again in the new generation: nobody is left, so that it begins again from a checkpoint.
  CHECK(find<restart_run>(group.on_ended(killed(1))));
  CHECK(group.failures().size() == 3);
}

TEST_CASE("when nobody is left and the budget is used up, the run ends") {
  auto group = training(2, {1});
  for (std::uint32_t i = 0; i < 2; ++i)
    group.on_applied({i}, {3});
  static_cast<void>(group.on_ended(killed(0)));
  CHECK(find<form_generation>(group.on_report(elsewhere(1, 3))));
  auto end = group.on_ended(killed(1));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->status == run_status::failed);
  CHECK(find<conclude>(end)->reason.message.find("failure number 2 without a new step after step 3, more than "
                                                 "failure.max_failures (1)") != std::string::npos);
  CHECK(group.failures().size() == 2);
}

TEST_CASE("a worker that finds its group gone before its node tells why begins the regroup") {
  auto group = training(3, {1});
  auto told = elsewhere(0, 3);
  told.reason = {errc::aborted, "lost rank 2"};
  CHECK(find<abort_generation>(group.on_report(told)));
  // The loss behind it is the same failure, and the budget holds.
  CHECK(find<conclude>(group.on_ended(killed(2))) == nullptr);
  CHECK(find<form_generation>(group.on_report(elsewhere(1, 3))));
}

TEST_CASE("a lost node's workers are lost together") {
  auto group = training(4);
  CHECK(group.on_report(elsewhere(0, 3)).size() == 1);
  CHECK(group.on_report(elsewhere(2, 3)).empty());
  CHECK(group.on_report(elsewhere(3, 3)).empty());
  const auto actions = group.on_node_lost(1, "10.0.0.2:4000");
  CHECK(find<form_generation>(actions) == nullptr);
  const auto formed = group.on_report(elsewhere(1, 3));
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
  CHECK(find<form_generation>(group.on_report(elsewhere(2, 10))));
  CHECK(find<release_all>(group.on_finished(finished(2))));
}

TEST_CASE("failures without a new step beyond the budget end the run, and earlier ones are forgotten") {
  auto group = training(8, {1});
  for (std::uint32_t lost = 0; lost < 5; ++lost) {
    group.on_applied({7}, {lost + 1});
    CHECK(find<conclude>(group.on_ended(killed(lost))) == nullptr);
    for (std::uint32_t i = lost + 1; i < 8; ++i)
      static_cast<void>(group.on_report(elsewhere(i, lost + 1, lost + 1)));
    REQUIRE(group.training());
  }
  const auto over = group.on_ended(killed(5));
  CHECK(find<abort_all>(over));
  CHECK_FALSE(group.goes_on());
}

TEST_CASE("however many workers end before the others have formed anew, it is one failure") {
  auto group = training(8, {1});
  for (std::uint32_t lost = 0; lost < 7; ++lost)
    static_cast<void>(group.on_ended(killed(lost)));
  CHECK(find<form_generation>(group.on_report(elsewhere(7, 3))));
  CHECK(group.failures().size() == 7);
}

TEST_CASE("contradicting reports end the run") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(elsewhere(1, 3)).empty());
  CHECK(find<abort_all>(group.on_report(elsewhere(2, 5))));
}

TEST_CASE("where the training functions do not survive a loss, that loss is the cause") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  CHECK(find<abort_all>(group.on_finished(cut_off(0, 3))));
  const auto over = group.on_finished(cut_off(2, 3));
  REQUIRE(find<conclude>(over));
  CHECK(find<conclude>(over)->reason.code == errc::worker_lost);
  REQUIRE(group.failures().size() == 3);
  CHECK_FALSE(group.failures()[0].consequence);
  CHECK(group.failures()[1].consequence);
  CHECK(group.failures()[2].consequence);
}

TEST_CASE("a report of a generation that is over, or of one that was given up, is refused and changes nothing") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  REQUIRE(group.generation() == generation_id{2});
  const auto refusal = [&](const regroup_report& report) {
    const auto actions = group.on_report(report);
    REQUIRE(actions.size() == 1);
    REQUIRE(find<refuse_report>(actions));
    CHECK(find<refuse_report>(actions)->worker == report.worker);
    CHECK(group.training());
    return find<refuse_report>(actions)->reason;
  };
  CHECK(refusal(elsewhere(0, 4, 1)).code == errc::stale_generation);
  CHECK(says(refusal(elsewhere(0, 4, 1)).message, "generation 1 is over; the last is 2"));
  CHECK(refusal(elsewhere(1, 4, 2)).code == errc::stale_generation);
  CHECK(refusal(elsewhere(9, 4, 2)).code == errc::stale_generation);
  CHECK(group.furthest() == step_id{4});
  static_cast<void>(group.on_finished(throws(0, 0, "at once")));
  CHECK(group.on_report(elsewhere(2, 4, 1)).size() == 1);
  CHECK(find<refuse_report>(group.on_report(elsewhere(2, 4, 1))));
}

TEST_CASE("a run that fails has its state saved by a member, and what becomes of that is no cause") {
  const auto failing = [] {
    auto group = in_loop(3);
    static_cast<void>(group.on_finished(throws(1, 0, "at once")));
    CHECK_FALSE(group.goes_on());
    CHECK(group.on_report(elsewhere(0, 4)).empty());
    const auto ending = group.on_report(elsewhere(2, 4));
    REQUIRE(find<save_state>(ending));
    CHECK(find<save_state>(ending)->worker == worker_id{0});
    return group;
  };
  auto saved = failing();
  const auto refused = saved.on_finished(cut_off(0, 4));
  REQUIRE(find<refuse_report>(refused));
  CHECK(find<refuse_report>(refused)->worker == worker_id{2});
  CHECK(find<conclude>(saved.on_finished(cut_off(2, 4)))->reason.message == "at once");
  auto unsaved = failing();
  CHECK(find<save_state>(unsaved.on_finished(fails(0, 4, errc::io_error, "no space")))->worker == worker_id{2});
  const auto end = unsaved.on_finished(fails(2, 4, errc::io_error, "no space"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "at once");
  REQUIRE(unsaved.failures().size() == 3);
  CHECK(unsaved.failures()[1].consequence);
  CHECK(unsaved.failures()[2].consequence);
}

TEST_CASE("the state of replicas that differ is not saved") {
  auto group = in_loop(3);
  static_cast<void>(group.on_finished(fails(1, 4, errc::mismatch, "replicas differ")));
  CHECK(find<refuse_report>(group.on_report(elsewhere(0, 4))));
}
