#include "worker/step/step_timer.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <tuple>

using namespace std::chrono_literals;
using troupe::generation_id;
using troupe::rank_id;
using troupe::step_id;
using troupe::times_row;
using troupe::runtime::step_phase;
using troupe::runtime::step_timer;

namespace {

/// Steps of 10 ms compute, 3 ms wait and 2 ms barrier, with 1 ms of application after it.
struct stepping {
  stepping() { timer.set_interval(40ms); }

  step_timer timer;
  step_timer::clock::time_point now{};

  auto step(std::uint64_t id, std::uint64_t generation = 1, std::uint32_t rank = 2) {
    timer.begin(now);
    timer.enter(step_phase::wait, now += 10ms);
    timer.enter(step_phase::barrier, now += 3ms);
    timer.enter(step_phase::compute, now += 2ms);
    return timer.end(step_id{id}, generation_id{generation}, rank_id{rank}, now += 1ms);
  }
};

/// A row of rank, generation, first and last step, and microseconds of computing, waiting and the barrier. Its steps
/// take 11 to 17 ms each.
times_row row_of(std::uint32_t rank, std::uint64_t generation, std::uint64_t first, std::uint64_t last,
                 std::uint64_t steps, std::uint64_t compute_us, std::uint64_t wait_us, std::uint64_t barrier_us) {
  times_row result{{rank}, {generation}, {first}, {last}, steps, compute_us, wait_us, barrier_us};
  result.durations.resize(troupe::step_duration_bounds_us.size() + 1);
  // Above 10 ms, up to 25 ms.
  result.durations[6] = static_cast<std::uint32_t>(steps);
  return result;
}

} // namespace

TEST_CASE("times are added up until the interval is over") {
  auto run = stepping{};
  // The interval begins when the first step of a row is over.
  CHECK_FALSE(run.step(5));
  CHECK_FALSE(run.step(6));
  CHECK_FALSE(run.step(7));
  CHECK(run.step(8) == row_of(2, 1, 5, 8, 4, 44'000, 12'000, 8'000));
  CHECK_FALSE(run.step(9));
  CHECK(run.timer.take() == row_of(2, 1, 9, 9, 1, 11'000, 3'000, 2'000));
  CHECK_FALSE(run.timer.take());
}

TEST_CASE("a row is of one generation and of one rank") {
  auto run = stepping{};
  CHECK_FALSE(run.step(1));
  CHECK(run.step(2, 2) == row_of(2, 1, 1, 1, 1, 11'000, 3'000, 2'000));
  CHECK(run.step(3, 2, 1) == row_of(2, 2, 2, 2, 1, 11'000, 3'000, 2'000));
  CHECK(run.timer.take() == row_of(1, 2, 3, 3, 1, 11'000, 3'000, 2'000));
}

TEST_CASE("a try that came to nothing is forgotten, and so is the forming of a group") {
  auto run = stepping{};
  run.timer.begin(run.now);
  run.timer.enter(step_phase::wait, run.now += 500ms);
  CHECK_FALSE(run.step(1));
  CHECK(run.timer.take() == row_of(2, 1, 1, 1, 1, 11'000, 3'000, 2'000));
  // Its group is lost at the barrier, and the step counts all the same.
  run.timer.begin(run.now);
  run.timer.enter(step_phase::wait, run.now += 10ms);
  run.timer.enter(step_phase::barrier, run.now += 3ms);
  run.timer.leave_out(run.now += 700ms);
  CHECK_FALSE(run.timer.end(step_id{2}, generation_id{1}, rank_id{2}, run.now += 1ms));
  CHECK(run.timer.take() == row_of(2, 1, 2, 2, 1, 11'000, 3'000, 0));
}

TEST_CASE("rows become fewer in a long loop") {
  auto run = stepping{};
  const auto rows_in = [&](std::chrono::seconds time) {
    auto rows = 0;
    for (const auto end = run.now + time; run.now < end; run.now += 984ms)
      rows += run.step(1) ? 1 : 0;
    return rows;
  };
  // A row of slow steps has two.
  CHECK(rows_in(60s) == 30);
  (void)rows_in(3600s * 24);
  CHECK(rows_in(600s) <= 10);
}

TEST_CASE("waits for checkpoints, sent bytes and durations go with the row of their steps") {
  auto run = stepping{};
  run.timer.begin_group(1000);
  run.timer.note_sent(1500);
  CHECK_FALSE(run.step(1));
  run.timer.add_checkpoint(20ms);
  run.timer.add_checkpoint(5ms);
  run.timer.note_sent(1600);
  CHECK_FALSE(run.step(2));
  auto row = run.timer.take();
  REQUIRE(row);
  CHECK(row->checkpoint_us == 25'000);
  CHECK(row->sent_bytes == 600);
  CHECK(row->durations[6] == 2);
  // Another group counts from its own beginning, also when the step counts only in it.
  run.timer.note_sent(40);
  run.timer.begin_group(50);
  run.timer.note_sent(80);
  CHECK_FALSE(run.step(3));
  row = run.timer.take();
  REQUIRE(row);
  CHECK(row->sent_bytes == 30);
  CHECK(row->checkpoint_us == 0);
  CHECK(row->durations[6] == 1);
}

TEST_CASE("a step is in the bin of its duration, bounds included, and the longest have one of their own") {
  step_timer timer;
  auto now = step_timer::clock::time_point{};
  timer.set_interval(1h);
  for (const auto time : {step_timer::clock::duration{250us}, step_timer::clock::duration{251us},
                          step_timer::clock::duration{60s}, step_timer::clock::duration{61s}}) {
    timer.begin(now);
    std::ignore = timer.end(step_id{1}, generation_id{1}, rank_id{0}, now += time);
  }
  const auto row = timer.take();
  REQUIRE(row);
  CHECK(row->durations[0] == 1);
  CHECK(row->durations[1] == 1);
  CHECK(row->durations[16] == 1);
  CHECK(row->durations[17] == 1);
}
