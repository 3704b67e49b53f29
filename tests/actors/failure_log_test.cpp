#include <troupe/actors/decisions/failure_log.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

failure_record failure(std::uint32_t worker, errc code) {
  failure_record result;
  result.worker = {worker};
  result.reason = {code, "reason"};
  return result;
}

worker_ended exit_with(std::int32_t status, bool out_of_memory = false) {
  worker_ended result;
  result.exit_status = status;
  result.description = "how it ended";
  result.out_of_memory = out_of_memory;
  return result;
}

} // namespace

TEST_CASE("the cause of the end is the first failure that is no cut-off collective, and the rest follows from it") {
  auto log = failure_log{};
  log.add(failure(0, errc::worker_lost));
  const auto first = log.size();
  log.add(failure(1, errc::aborted));
  log.add(failure(2, errc::user_error));
  log.add(failure(3, errc::aborted));
  // The event of a failure is written before the run's end is known.
  CHECK(log.records()[1].consequence);
  CHECK(log.conclude(first) == error{errc::user_error, "reason"});
  std::vector<std::uint32_t> order;
  for (const auto& each : log.records())
    order.push_back(each.worker.value);
  CHECK(order == std::vector<std::uint32_t>{0, 2, 1, 3});
  CHECK_FALSE(log.records()[1].consequence);
  CHECK(log.records()[2].consequence);
  CHECK(log.records()[3].consequence);
}

TEST_CASE("if all were cut off, they follow from the last loss before") {
  auto log = failure_log{};
  log.add(failure(0, errc::worker_lost));
  log.add(failure(1, errc::aborted));
  CHECK(log.conclude(1).code == errc::worker_lost);
  CHECK(log.records()[1].consequence);
  auto alone = failure_log{};
  alone.add(failure(1, errc::aborted));
  CHECK(alone.conclude(0).code == errc::aborted);
  CHECK_FALSE(alone.records()[0].consequence);
}

TEST_CASE("an exit says whether the process ended by itself, when, and with which last lines") {
  CHECK(who_ended(exit_with(1)) == ended_by::itself);
  CHECK(who_ended(exit_with(137)) == ended_by::outside);
  CHECK(who_ended(exit_with(143)) == ended_by::outside);
  // It was killed because it hung.
  CHECK(who_ended(exit_with(137), ended_by::itself) == ended_by::itself);
  CHECK(who_ended(exit_with(never_started)) == ended_by::outside);
  CHECK(who_ended(exit_with(137, true)) == ended_by::itself);
  auto who = worker_record{};
  who.place.worker = {3};
  who.place.rank = {1};
  who.applied = {7};
  const auto early = describe_exit(who, standing::started{}, {2}, exit_with(1));
  CHECK(early.reason == error{errc::worker_lost, "worker 3 (rank 1) ended before it had joined: how it ended"});
  CHECK(early.generation == generation_id{2});
  who.host = "host-1";
  auto message = exit_with(1);
  message.last_lines = {"a line"};
  const auto late = describe_exit(who, standing::active{}, {2}, message);
  CHECK(late.reason.message ==
        "worker 3 (rank 1) on host-1 ended after step 7: how it ended; its last lines:\n  a line");
  CHECK(late.last_lines == message.last_lines);
  CHECK(late.step == step_id{8});
}

TEST_CASE("a failure that happens again is no accident") {
  auto repeated = repeated_failures{{}};
  CHECK_FALSE(repeated.note_own_failure({4}, 0));
  CHECK_FALSE(repeated.note_own_failure({5}, 1));
  CHECK(repeated.note_own_failure({4}, 2) == 0);
  CHECK_FALSE(repeated.note_hang({4}));
  CHECK_FALSE(repeated.note_hang({5}));
  CHECK(repeated.note_hang({5}));
  CHECK_FALSE(repeated.note_late_start());
  CHECK(repeated.note_late_start());
  repeated.note_begin();
  CHECK_FALSE(repeated.note_late_start());
}

TEST_CASE("three attempts that end by themselves in one step are too many, or ten that are ended from outside") {
  auto repeated = repeated_failures{{20}};
  CHECK_FALSE(repeated.note_end_of_attempt({20}, ended_by::itself));
  CHECK_FALSE(repeated.note_end_of_attempt({20}, ended_by::itself));
  // The first of those in the next step.
  CHECK_FALSE(repeated.note_end_of_attempt({21}, ended_by::itself));
  CHECK(repeated.fruitless_attempts() == 0);
  CHECK_FALSE(repeated.note_end_of_attempt({21}, ended_by::itself));
  CHECK_FALSE(repeated.note_end_of_attempt({21}, ended_by::outside));
  auto all_alike = repeated;
  CHECK(all_alike.note_end_of_attempt({21}, ended_by::itself));
  CHECK(all_alike.describe_own_ends() == "3 attempts ended in step 22");
  // It did not come as far.
  CHECK(repeated.note_end_of_attempt({20}, ended_by::itself));
  CHECK(repeated.ends_by_itself());
  CHECK(repeated.describe_own_ends() == "3 attempts ended in steps 21 to 22");

  repeated = repeated_failures{{20}};
  for (auto i = 0; i < 9; ++i)
    CHECK_FALSE(repeated.note_end_of_attempt({20}, ended_by::outside));
  CHECK(repeated.note_end_of_attempt({20}, ended_by::outside));
  CHECK_FALSE(repeated.ends_by_itself());
}
