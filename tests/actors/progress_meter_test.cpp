#include <troupe/actors/decisions/progress_meter.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <tuple>
#include <utility>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = progress_meter::clock::time_point{1000s};

metrics_batch at_step(std::uint64_t step, metric_map values = {}) {
  metrics_batch result;
  result.applied = {step};
  if (!values.empty())
    result.rows.push_back({{step}, 0, 0, std::move(values)});
  return result;
}

progress_meter meter_for(std::uint64_t steps, std::uint64_t first_step = 0) {
  progress_meter result;
  result.begin({"run"}, start, first_step);
  run_plan plan;
  plan.steps = steps;
  plan.batch_samples = 64;
  result.set_plan(plan, start + 1s);
  return result;
}

} // namespace

TEST_CASE("speed and time left come from the steps since training began") {
  auto meter = meter_for(100);
  auto event = meter.add(at_step(20, {{"loss", 0.5}}), start + 3s);
  REQUIRE(event);
  CHECK(event->run.value == "run");
  CHECK(event->step == 20);
  CHECK(event->steps == 100);
  CHECK(event->batch_samples == 64);
  CHECK(event->metrics == metric_map{{"loss", 0.5}});
  CHECK(event->samples_per_second == doctest::Approx(640));
  CHECK(event->seconds_elapsed == doctest::Approx(3));
  CHECK(event->seconds_left == doctest::Approx(8));
}

TEST_CASE("a resumed run does not count the steps of before into its speed") {
  auto meter = meter_for(100, 50);
  CHECK(meter.latest().step == 50);
  CHECK(meter.add(at_step(60), start + 2s)->samples_per_second == doctest::Approx(640));
}

TEST_CASE("events come not more often than people can see, but for the last") {
  auto meter = meter_for(10);
  CHECK(meter.add(at_step(1), start + 2s));
  CHECK_FALSE(meter.add(at_step(2), start + 2s + 49ms));
  CHECK(meter.latest().step == 2);
  CHECK(meter.add(at_step(3), start + 2s + 50ms));
  CHECK_FALSE(meter.add(at_step(9), start + 2s + 51ms));
  auto last = meter.add(at_step(10), start + 2s + 52ms);
  REQUIRE(last);
  CHECK(last->seconds_left == 0);
}

TEST_CASE("metrics of different names add up, the latest value of each counts") {
  auto meter = meter_for(10);
  std::ignore = meter.add(at_step(1, {{"loss", 3}, {"accuracy", 0.1}}), start + 2s);
  std::ignore = meter.add(at_step(2, {{"loss", 2}}), start + 3s);
  CHECK(meter.latest().metrics == metric_map{{"accuracy", 0.1}, {"loss", 2}});
}

TEST_CASE("each value says which step it is from, also where a report comes before its step is applied") {
  auto meter = meter_for(10);
  metrics_batch batch;
  batch.applied = {2};
  batch.rows = {{{1}, 0, 0, {{"accuracy", 0.1}, {"loss", 3}}}, {{2}, 0, 0, {{"loss", 2}}}, {{3}, 0, 0, {{"loss", 1}}}};
  std::ignore = meter.add(batch, start + 2s);
  CHECK(meter.latest().step == 2);
  CHECK(meter.latest().metrics == metric_map{{"accuracy", 0.1}, {"loss", 1}});
  CHECK(meter.latest().metrics_from == metric_steps{{"accuracy", 1}, {"loss", 3}});
}

TEST_CASE("the speed is that of the last seconds") {
  auto meter = meter_for(1000);
  std::ignore = meter.add(at_step(10), start + 11s);
  CHECK(meter.latest().samples_per_second == doctest::Approx(64));
  std::ignore = meter.add(at_step(110), start + 12s);
  CHECK(meter.latest().samples_per_second == doctest::Approx(6400));
}

TEST_CASE("a batch that adds no step changes no speed") {
  auto meter = meter_for(100);
  std::ignore = meter.add(at_step(20), start + 3s);
  std::ignore = meter.add(at_step(20), start + 3s);
  CHECK(meter.latest().samples_per_second == doctest::Approx(640));
}

TEST_CASE("a batch from before the first step takes no step back") {
  auto meter = meter_for(100, 50);
  std::ignore = meter.add(at_step(0, {{"note", 1}}), start + 2s);
  CHECK(meter.latest().step == 50);
  CHECK(meter.latest().samples_per_second == 0);
}
