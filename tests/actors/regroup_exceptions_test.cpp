#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

TEST_CASE("an exception is tried once more, by the others; on the same step again it is the user's error") {
  auto group = in_loop(3);
  const auto first = group.on_finished(throws(1, 4, "out of range"));
  CHECK(find<abort_generation>(first));
  CHECK(asked_for(first) == 1);
  REQUIRE(find<release_one>(first));
  CHECK(find<release_one>(first)->worker == worker_id{1});
  CHECK(only_makes_room(group.on_ended({run, {1}, 0, "exit code 0", {}})));
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
  // Another step is another accident.
  CHECK(find<abort_generation>(group.on_finished(throws(0, 6, "no such file"))));
  CHECK(find<form_generation>(gather(group, {2}, 6, 2)));
  CHECK(group.failures().size() == 2);
  const auto again = group.on_finished(throws(2, 4, "out of range"));
  REQUIRE(find<conclude>(again));
  CHECK(find<conclude>(again)->status == run_status::failed);
  CHECK(find<conclude>(again)->reason.code == errc::user_error);
  CHECK(find<conclude>(again)->reason.message == "out of range");
}

TEST_CASE("a GPU that fails is an accident once, as an exception is") {
  auto group = in_loop(3);
  const auto first = group.on_finished(fails(1, 4, errc::device_error, "GPU 0: illegal address"));
  CHECK(find<abort_generation>(first));
  CHECK(asked_for(first) == 1);
  REQUIRE(find<release_one>(first));
  CHECK(only_makes_room(group.on_ended({run, {1}, 0, "exit code 0", {}})));
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
  const auto again = group.on_finished(fails(2, 4, errc::device_error, "GPU 0: illegal address"));
  CHECK(find<abort_all>(again));
  const auto end = group.on_finished(cut_off(0, 4));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::device_error);
}

TEST_CASE("an exception that all workers throw on the same step ends the run at once, and the first is the cause") {
  auto group = in_loop(3);
  CHECK(find<abort_generation>(group.on_finished(throws(1, 4, "from rank 1"))));
  CHECK(find<abort_all>(group.on_finished(throws(0, 4, "from rank 0"))));
  const auto end = group.on_finished(throws(2, 4, "from rank 2"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "from rank 1");
}

TEST_CASE("an exception before the first step of an attempt ends the run") {
  auto config = settings_for(2, 2);
  config.first_step = {7};
  auto group = in_loop(config);
  CHECK(find<abort_all>(group.on_finished(throws(1, 7, "no such file"))));
  const auto end = group.on_finished(cut_off(0, 7));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "no such file");
}

TEST_CASE("an exception of the only worker starts the run again, and the same one after it ends it") {
  auto group = in_loop(1);
  CHECK(find<restart_run>(group.on_finished(throws(0, 4, "out of range"))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {2});
  begin(group, {1}, 2);
  const auto end = group.on_finished(throws(1, 4, "out of range"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::user_error);
}

/// Of a member whose training function has thrown in the step after `committed`.
regroup_report thrown(std::uint32_t worker, std::uint64_t committed, error reason, std::uint64_t generation = 1) {
  auto result = report_of(worker, worker_position::thrown{after(committed)}, generation);
  result.reason = std::move(reason);
  return result;
}

TEST_CASE("a worker that throws while others have the state is told so at once, and they go on") {
  auto group = in_loop(3);
  const auto first = group.on_report(thrown(1, 4, {errc::user_error, "out of range"}));
  REQUIRE(find<refuse_report>(first));
  CHECK(find<refuse_report>(first)->worker == worker_id{1});
  CHECK(find<abort_generation>(first));
  CHECK(find<save_state>(first) == nullptr);
  // Its process is let go when its training function has ended.
  CHECK(find<release_one>(first) == nullptr);
  const auto ended = group.on_finished(throws(1, 4, "out of range"));
  REQUIRE(ended.size() == 1);
  REQUIRE(find<release_one>(ended));
  CHECK(find<release_one>(ended)->worker == worker_id{1});
  CHECK(group.failures().size() == 1);
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
}

TEST_CASE("the only worker saves its state when it throws, and the run restarts from there") {
  auto group = in_loop(1);
  const auto first = group.on_report(thrown(0, 4, {errc::device_error, "GPU 0: out of memory"}));
  REQUIRE(first.size() == 1);
  REQUIRE(find<save_state>(first));
  CHECK(*find<save_state>(first) == save_state{{0}, {errc::device_error, "GPU 0: out of memory"}, {4}});
  CHECK(group.failures().empty());
  CHECK(find<restart_run>(group.on_finished(fails(0, 4, errc::device_error, "GPU 0: out of memory"))));
}

TEST_CASE("when all workers throw in one step, one of them saves the state") {
  const auto reason = error{errc::user_error, "out of range"};
  auto two = in_loop(2);
  CHECK(find<refuse_report>(two.on_report(thrown(1, 4, reason))));
  const auto last = two.on_report(thrown(0, 4, reason));
  REQUIRE(find<save_state>(last));
  CHECK(find<save_state>(last)->worker == worker_id{0});
  CHECK(find<conclude>(two.on_finished(throws(0, 4, "out of range"))));
  // The second ends the run, which asks those that remain.
  auto four = in_loop(4);
  CHECK(find<refuse_report>(four.on_report(thrown(1, 4, reason))));
  const auto second = four.on_report(thrown(3, 4, reason));
  CHECK(find<refuse_report>(second));
  CHECK(find<abort_all>(second));
  CHECK(four.on_report(thrown(2, 4, reason)).empty());
  const auto ending = four.on_report(thrown(0, 4, reason));
  REQUIRE(find<save_state>(ending));
  CHECK(find<save_state>(ending)->worker == worker_id{0});
  CHECK(find<refuse_report>(four.on_finished(cut_off(0, 4))));
  const auto end = four.on_finished(throws(2, 4, "out of range"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::user_error);
}
