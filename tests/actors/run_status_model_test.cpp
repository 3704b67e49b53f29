#include <troupe/actors/decisions/run_status_model.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

/// 2026-11-26T10:40:00.250Z
const auto start = std::chrono::system_clock::time_point{std::chrono::milliseconds{1'795'689'600'250}};

run_identification who() {
  return {{"abc"}, "digits", "/runs/digits", "host-a", 4711, start, {}};
}

run_condition training(std::uint64_t step) {
  run_condition result;
  result.activity = run_activity::running;
  result.generation = {2};
  result.attempt = 1;
  result.furthest = {step};
  result.workers = {{{3}, {0}, "host-a", "embedded", 100}, {{4}, {1}, "host-b", "b:4000", 200}};
  result.wanted = {2, 4};
  return result;
}

} // namespace

TEST_CASE("a status says who the run is, also before anything has happened") {
  const auto status = run_status_model{who()}.status(start + 2s);
  CHECK(status["name"] == "digits");
  CHECK(status["state"] == "starting");
  CHECK(status["since"] == "2026-11-26T10:40:00.250Z");
  CHECK(status["seconds_in_state"] == 2.0);
  CHECK(status["driver"]["pid"] == 4711);
  CHECK(status["step"] == 0);
  CHECK(status["workers"].empty());
  CHECK_FALSE(status.contains("checkpoint"));
  CHECK_FALSE(status.contains("seconds_to_time_limit"));
}

TEST_CASE("a state has the time of its change, which other news do not move") {
  run_status_model model{who()};
  model.on(training(5), start + 3s);
  model.on(training(6), start + 4s);
  CHECK(model.status(start + 5s)["seconds_in_state"] == 2.0);
  auto paused = training(6);
  paused.activity = run_activity::paused;
  model.on(paused, start + 6s);
  const auto status = model.status(start + 7s);
  CHECK(status["state"] == "paused");
  CHECK(status["seconds_in_state"] == 1.0);
}

TEST_CASE("progress, members and checkpoints are in the status") {
  run_status_model model{who()};
  run_progress progress;
  progress.step = 41;
  progress.steps = 100;
  progress.metrics = {{"loss", 0.5}, {"odd", std::numeric_limits<double>::quiet_NaN()}};
  progress.samples_per_second = 640;
  progress.seconds_left = 9;
  model.on(progress);
  model.on(checkpoint_saved{{}, {40}, "/runs/digits/checkpoints/step-00000040", 4096, 0.1}, start + 1s);
  // Heartbeats are sooner than metrics.
  model.on(training(42), start + 2s);
  const auto status = model.status(start + 2s);
  CHECK(status["step"] == 42);
  CHECK(status["steps"] == 100);
  CHECK(status["metrics"]["loss"] == 0.5);
  CHECK(status["seconds_left"] == 9.0);
  CHECK(status["generation"] == 2);
  CHECK(status["workers_wanted"] == nlohmann::ordered_json{{"min", 2}, {"max", 4}});
  REQUIRE(status["workers"].size() == 2);
  CHECK(status["workers"][1]["host"] == "host-b");
  CHECK(status["workers"][1]["rank"] == 1);
  CHECK(status["workers"][1]["worker"] == 4);
  CHECK(status["checkpoint"]["step"] == 40);
  CHECK(status["checkpoint"]["time"] == "2026-11-26T10:40:01.250Z");
  // As a line it is JSON.
  CHECK(nlohmann::json::parse(status.dump())["metrics"]["odd"].is_null());
}

TEST_CASE("the end replaces what the run did, with its cause and exit code") {
  run_status_model model{who()};
  model.on(training(7), start + 1s);
  run_result result;
  result.status = run_status::stopped;
  result.steps = 8;
  result.reason = {errc::timed_out, "its time was over"};
  result.latest_checkpoint = "/c";
  model.on(result, start + 9s);
  const auto status = model.status(start + 10s);
  CHECK(status["state"] == "stopped");
  CHECK(status["step"] == 8);
  CHECK(status["code"] == "timed_out");
  CHECK(status["exit_code"] == exit_out_of_time);
  CHECK(status["latest_checkpoint"] == "/c");
}

TEST_CASE("a time limit is counted down to nothing") {
  auto limited = who();
  limited.ends_by = start + 10s;
  const run_status_model model{limited};
  CHECK(model.status(start + 4s)["seconds_to_time_limit"] == 6.0);
  CHECK(model.status(start + 40s)["seconds_to_time_limit"] == 0.0);
}
