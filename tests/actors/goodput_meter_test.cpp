#include <troupe/actors/decisions/goodput_meter.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace std::chrono_literals;
using namespace troupe;
using troupe::actors::goodput_meter;
using troupe::actors::time_use;

namespace {

constexpr goodput_meter::clock::time_point start{1h};

/// A rank's row of steps of one second each.
metrics_batch steps(std::uint32_t rank, std::uint64_t first, std::uint64_t last) {
  times_row row{{rank}, {1}, {first}, {last}, last - first + 1};
  row.compute_us = row.steps * 700'000;
  row.wait_us = row.steps * 200'000;
  row.barrier_us = row.steps * 100'000;
  metrics_batch result;
  result.rank = {rank};
  result.times = {row};
  return result;
}

metrics_batch pause(std::uint32_t rank, std::uint64_t generation, std::chrono::milliseconds time) {
  metrics_batch result;
  result.rank = {rank};
  result.pauses = {{{generation}, {1}, static_cast<std::uint64_t>(std::chrono::microseconds{time}.count())}};
  return result;
}

double all_of(const run_goodput& x) {
  auto result = x.productive_seconds;
  for_each_cause(x.lost, [&result](const char*, double seconds) { result += seconds; });
  return result;
}

} // namespace

TEST_CASE("a run that starts, trains and ends loses its start and its end") {
  auto meter = goodput_meter{start};
  meter.begin_after({});
  meter.enter(time_use::training, start + 3s);
  // Each rank tells of all steps.
  meter.add(steps(0, 1, 4));
  meter.add(steps(1, 1, 4));
  meter.add(steps(1, 5, 6));
  meter.add(steps(0, 5, 6));
  meter.enter(time_use::ending, start + 9s);
  const auto x = meter.so_far(start + 10s);
  CHECK(x.seconds == 10);
  CHECK(x.steps == 6);
  CHECK(x.productive_seconds == doctest::Approx(6));
  CHECK(x.ratio() == doctest::Approx(0.6));
  CHECK(x.lost.start_up == 3);
  CHECK(x.lost.ending == 1);
  CHECK(x.lost.other == doctest::Approx(0));
}

TEST_CASE("steps count once, also where rows of ranks overlap or a rank was lost with its row") {
  auto meter = goodput_meter{start};
  meter.enter(time_use::training, start);
  meter.add(steps(1, 1, 10));
  meter.add(steps(0, 1, 12));
  CHECK(meter.so_far(start + 1h).steps == 12);
  CHECK(meter.so_far(start + 1h).productive_seconds == doctest::Approx(12));
  // Nobody has told of 13 to 15.
  meter.add(steps(2, 16, 18));
  meter.add(steps(1, 11, 18));
  CHECK(meter.so_far(start + 1h).steps == 18);
  CHECK(meter.so_far(start + 1h).productive_seconds == doctest::Approx(18));
}

TEST_CASE("after a restart, steps that are computed again are lost time, and each is so once") {
  auto meter = goodput_meter{start};
  meter.begin_after({});
  meter.enter(time_use::training, start);
  // 9 and 10 were applied, and whoever did it is gone.
  meter.add(steps(0, 1, 8));
  meter.enter(time_use::restarting, start + 10s);
  meter.restart_after({5}, {10});
  meter.enter(time_use::training, start + 12s);
  meter.add(steps(0, 6, 8));
  meter.add(steps(1, 6, 8));
  meter.add(steps(1, 9, 12));
  meter.add(steps(0, 9, 12));
  const auto x = meter.so_far(start + 19s);
  CHECK(x.steps == 12);
  CHECK(x.steps_redone == 5);
  CHECK(x.productive_seconds == doctest::Approx(12));
  CHECK(x.lost.redone == doctest::Approx(5));
  CHECK(x.lost.restart == 2);
  CHECK(all_of(x) == doctest::Approx(19));
}

TEST_CASE("a pause counts as its longest rank says, without the step in it and what held the run") {
  auto meter = goodput_meter{start};
  meter.enter(time_use::training, start);
  meter.add(steps(0, 1, 4));
  meter.formed({2}, start + 4s);
  meter.add(pause(0, 2, 1500ms));
  meter.add(pause(1, 2, 1250ms));
  CHECK(meter.so_far(start + 6s).lost.regroup == doctest::Approx(0.5));
  // A user pauses it for 20 s, and the ranks say 21.5 s.
  meter.enter(time_use::paused, start + 6s);
  meter.formed({3}, start + 26s);
  CHECK(meter.activity() == time_use::training);
  meter.add(pause(0, 3, 21'500ms));
  const auto x = meter.so_far(start + 28s);
  CHECK(x.lost.paused == 20);
  CHECK(x.lost.regroup == doctest::Approx(1.0));
}

TEST_CASE("waits for capacity are told apart, at the start, at a restart and between") {
  auto meter = goodput_meter{start};
  meter.enter(time_use::awaiting_capacity, start + 1s);
  meter.enter(time_use::starting, start + 6s);
  meter.enter(time_use::training, start + 7s);
  meter.add(steps(0, 1, 1));
  meter.enter(time_use::awaiting_capacity, start + 8s);
  meter.formed({2}, start + 10s);
  meter.add(pause(0, 2, 3500ms));
  auto x = meter.so_far(start + 11s);
  CHECK(x.lost.start_up == 2);
  CHECK(x.lost.capacity == 7);
  // What the start waited for is no part of this pause.
  CHECK(x.lost.regroup == doctest::Approx(0.5));
  meter.enter(time_use::restarting, start + 11s);
  meter.enter(time_use::awaiting_capacity, start + 12s);
  meter.enter(time_use::restarting, start + 15s);
  meter.enter(time_use::training, start + 16s);
  x = meter.so_far(start + 16s);
  CHECK(x.lost.capacity == 10);
  CHECK(x.lost.restart == 2);
}

TEST_CASE(
    "waits for checkpoints count as the rank says that waited longest, and nothing is more than the time there was") {
  auto meter = goodput_meter{start};
  meter.enter(time_use::training, start);
  auto slow = steps(1, 1, 2);
  slow.times[0].checkpoint_us = 750'000;
  auto fast = steps(0, 1, 2);
  fast.times[0].checkpoint_us = 250'000;
  meter.add(slow);
  meter.add(fast);
  CHECK(meter.so_far(start + 3s).lost.checkpoint == doctest::Approx(0.75));
  CHECK(meter.so_far(start + 3s).lost.other == doctest::Approx(0.25));
  // The clocks of driver and workers are not the same.
  CHECK(meter.so_far(start + 1s).ratio() == 1);
  CHECK(goodput_meter{start}.so_far(start).ratio() == 0);
}

TEST_CASE("many pauses are added up, however few are remembered") {
  auto meter = goodput_meter{start};
  meter.enter(time_use::training, start);
  for (std::uint64_t generation = 2; generation < 1002; ++generation) {
    meter.formed({generation}, start);
    meter.add(pause(0, generation, 10ms));
  }
  CHECK(meter.so_far(start + 1h).lost.regroup == doctest::Approx(10));
}
