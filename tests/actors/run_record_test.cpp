#include <troupe/actors/decisions/run_record.hpp>

#include <doctest/doctest.h>

using namespace std::chrono_literals;
using namespace troupe;
using namespace troupe::actors;

namespace {

const auto start = run_record::clock::time_point{} + 1h;

run_record record_of(std::uint32_t workers) {
  run_record record{{"r1"}, {.name = "digits"}, start};
  for (std::uint32_t i = 0; i < workers; ++i)
    record.on_started({worker_id{i}, rank_id{i}, 0, i, workers}, "host", "embedded");
  return record;
}

metrics_batch report_of(std::uint32_t rank, std::uint64_t step) {
  metrics_batch batch;
  batch.worker = {rank};
  batch.rank = {rank};
  batch.applied = {step};
  batch.rows.push_back({{step}, step, 0, {{"loss", 1.0 / static_cast<double>(step)}}});
  return batch;
}

generation_record generation_of(std::uint64_t number) {
  generation_record record;
  record.generation = {number};
  return record;
}

} // namespace

TEST_CASE("a worker has the next id, and the host that it reports itself") {
  auto record = record_of(2);
  CHECK(record.next_worker() == worker_id{2});
  CHECK(record.knows({1}));
  CHECK_FALSE(record.knows({2}));
  worker_ready ready;
  ready.worker = {1};
  ready.pid = 17;
  ready.host = "elsewhere";
  record.on_joined(ready);
  CHECK(record[{1}] == worker_info{{1}, {1}, "elsewhere", "embedded", 17});
  CHECK(record[{0}].host == "host");
}

TEST_CASE("the first step counts from the call of fit, and only steps after the one that was restored") {
  auto record = record_of(2);
  record.begin_from({5}, "step-5", {});
  CHECK(record.on_begin() == run_record::begin::first);
  CHECK(record.on_begin() == run_record::begin::again);
  std::ignore = record.on_metrics(report_of(1, 5), {1}, start + 1s);
  CHECK(record.result().seconds_to_first_step == 0);
  std::ignore = record.on_metrics(report_of(1, 6), {1}, start + 2s);
  std::ignore = record.on_metrics(report_of(1, 7), {1}, start + 3s);
  CHECK(record.result().seconds_to_first_step == 2);
  CHECK(record.result().resumed_from_step == 5);
  CHECK(record.result().latest_checkpoint == "step-5");
}

TEST_CASE("the time of a run goes on where it was left") {
  auto record = record_of(1);
  CHECK(record.run_time(start + 3s).count() == 3);
  record.set_earlier_time(8.5);
  CHECK(record.run_time(start + 3s).count() == 11.5);
}

TEST_CASE("progress is rank 0's") {
  auto record = record_of(2);
  record.on_begin();
  CHECK_FALSE(record.latest_progress());
  CHECK_FALSE(record.on_metrics(report_of(1, 3), {1}, start + 1s));
  auto event = record.on_metrics(report_of(0, 2), {1}, start + 1s);
  REQUIRE(event);
  CHECK(event->step == 2);
  CHECK(record.latest_progress()->metrics.at("loss") == 0.5);
}

TEST_CASE("a generation's pause is the longest that a rank reports") {
  auto record = record_of(2);
  record.add(generation_of(2));
  record.add(generation_of(3));
  auto batch = report_of(0, 1);
  batch.pauses = {{{2}, {1}, 40'000}, {{2}, {1}, 60'000}, {{2}, {1}, 50'000}};
  std::ignore = record.on_metrics(batch, {3}, start);
  CHECK(record.result().generations[0].pause_seconds == doctest::Approx(0.06));
  CHECK(record.result().generations[1].pause_seconds == 0);
}

TEST_CASE("a restart costs the steps since the checkpoint, and the time to the first step after it") {
  auto record = record_of(1);
  record.begin_from({}, {}, {});
  record.on_restart("worker 0 ended", {8}, start + 10s);
  record.begin_from({5}, "step-5", {});
  auto generation = record.restarted_generation({2}, 2, 1);
  CHECK(generation.steps_redone == 3);
  CHECK(generation.commit_point == step_id{5});
  CHECK(generation.reason == "worker 0 ended; started again from step 5");
  record.add(generation);
  std::ignore = record.on_metrics(report_of(0, 5), {2}, start + 11s);
  std::ignore = record.on_metrics(report_of(0, 6), {2}, start + 12s);
  std::ignore = record.on_metrics(report_of(0, 7), {2}, start + 19s);
  CHECK(record.result().generations[0].pause_seconds == 2);
  CHECK(record.result().restarts == 1);
  CHECK(record.result().resumed_from_step == 0);
}

TEST_CASE("steps that an earlier attempt had applied count as redone, too") {
  auto record = record_of(1);
  record.on_restart("lost", {8}, start);
  record.on_restart("lost again", {6}, start);
  CHECK(record.restarted_generation({3}, 3, 1).steps_redone == 8);
}

TEST_CASE("the result has the metrics of the last reports, and for the rest those of the checkpoint") {
  auto record = record_of(1);
  record.begin_from({1}, "step-1", {{"loss", 9.0}, {"accuracy", 0.5}}, {{"loss", 1}, {"accuracy", 1}});
  record.on_begin();
  std::ignore = record.on_metrics(report_of(0, 2), {1}, start);
  record.conclude(run_status::completed, {});
  record.set_final_state({}, "abc", {4});
  auto result = record.finish(start + 3s);
  CHECK(result.metrics == metric_map{{"accuracy", 0.5}, {"loss", 0.5}});
  CHECK(result.metrics_from == metric_steps{{"accuracy", 1}, {"loss", 2}});
  CHECK(result.steps == 4);
  CHECK(result.state_sha256 == "abc");
  CHECK(result.seconds_total == 3);
}

TEST_CASE("a failed run has no final state, and one inexact attempt makes the result inexact") {
  auto record = record_of(1);
  record.note_exactness(false);
  record.note_exactness(true);
  record.conclude(run_status::failed, {errc::worker_lost, "lost"});
  record.set_final_state({}, "abc", {4});
  CHECK(record.result().state_sha256.empty());
  CHECK_FALSE(record.result().exact);
}

TEST_CASE("checkpoints are counted by their outcome; a failed one leaves the latest") {
  auto record = record_of(1);
  checkpoint_outcome good;
  good.path = "step-2";
  record.on_checkpoint(good);
  checkpoint_outcome bad;
  bad.path = "step-3";
  bad.reason = {errc::io_error, "full"};
  record.on_checkpoint(bad);
  CHECK(record.on_skipped_checkpoint() == 1);
  CHECK(record.on_skipped_checkpoint() == 2);
  CHECK(record.result().due_checkpoints == checkpoint_counts{1, 2, 1});
  CHECK(record.result().latest_checkpoint == "step-2");
}

TEST_CASE("a run whose last checkpoint failed has failed, unless only an earlier one did") {
  checkpoint_outcome bad;
  bad.step = {3};
  bad.reason = {errc::io_error, "full"};
  const auto ends_after = [&](std::uint64_t last_step) {
    auto record = record_of(1);
    record.on_checkpoint(bad);
    record.conclude(run_status::completed, {});
    record.set_final_state({}, "abc", {last_step});
    return record.finish(start);
  };
  CHECK(ends_after(3).status == run_status::failed);
  CHECK(ends_after(3).reason == error{errc::io_error, "the last checkpoint, of step 3, could not be taken: full"});
  CHECK(ends_after(4).status == run_status::completed);
  auto record = record_of(1);
  record.on_checkpoint(bad);
  auto good = bad;
  good.reason = {};
  record.on_checkpoint(good);
  record.conclude(run_status::stopped, {errc::stopped, "as asked"});
  record.set_final_state({}, "abc", {3});
  CHECK(record.finish(start).status == run_status::stopped);
}

TEST_CASE("another driver tells what those before it have seen, up to a limit") {
  auto before = record_of(2);
  before.begin_from({20}, "step-20", {});
  before.on_restart("all were lost", {25}, start);
  before.on_checkpoint({{30}, "step-30", {}});
  for (std::uint64_t generation = 2; generation <= 301; ++generation)
    before.add(generation_of(generation));
  std::vector<failure_record> failures(300);
  for (std::uint32_t i = 0; i < 300; ++i)
    failures[i].pid = i;
  failures.back().last_lines = {"its last line"};
  const auto history = before.history(failures);
  CHECK(history.failures.size() == 256);
  CHECK(history.failures.front().pid == 44);
  CHECK(history.failures.back().last_lines.empty());
  CHECK(history.generations.size() == 256);
  run_record next{{"r1"}, {.name = "digits"}, start};
  next.go_on_from(history);
  next.begin_from({30}, "step-30", {});
  next.skip_workers({1000});
  CHECK(next.next_worker() == worker_id{1000});
  CHECK(next.knows({999}));
  CHECK(next[{999}].node.empty());
  CHECK(next.result().workers.size() == 2);
  next.on_started({worker_id{1}, rank_id{0}, 0, 0, 1}, "host", "embedded");
  next.on_started({worker_id{1000}, rank_id{1}, 0, 0, 1}, "host", "embedded");
  next.add(generation_of(302));
  CHECK(next.history({}).failures.size() == 256);
  next.conclude(run_status::completed, {});
  next.set_final_state({failures[7]}, "", {40});
  const auto result = next.finish(start + 1s);
  CHECK(result.failures.size() == 257);
  CHECK(result.failures.back().pid == 7);
  CHECK(result.generations.size() == 257);
  CHECK(result.restarts == 1);
  CHECK(result.due_checkpoints.taken == 1);
  CHECK(result.resumed_from_step == 20);
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[0].worker == worker_id{0});
  CHECK(result.workers[2].worker == worker_id{1000});
}
