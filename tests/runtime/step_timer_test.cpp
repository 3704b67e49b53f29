#include "worker/step_timer.hpp"

#include <doctest/doctest.h>

#include <chrono>

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

} // namespace

TEST_CASE("times are added up until the interval is over") {
  auto run = stepping{};
  // The interval begins when the first step of a row is over.
  CHECK_FALSE(run.step(5));
  CHECK_FALSE(run.step(6));
  CHECK_FALSE(run.step(7));
  CHECK(run.step(8) == times_row{{2}, {1}, {5}, {8}, 4, 44'000, 12'000, 8'000});
  CHECK_FALSE(run.step(9));
  CHECK(run.timer.take() == times_row{{2}, {1}, {9}, {9}, 1, 11'000, 3'000, 2'000});
  CHECK_FALSE(run.timer.take());
}

TEST_CASE("a row is of one generation and of one rank") {
  auto run = stepping{};
  CHECK_FALSE(run.step(1));
  CHECK(run.step(2, 2) == times_row{{2}, {1}, {1}, {1}, 1, 11'000, 3'000, 2'000});
  CHECK(run.step(3, 2, 1) == times_row{{2}, {2}, {2}, {2}, 1, 11'000, 3'000, 2'000});
  CHECK(run.timer.take() == times_row{{1}, {2}, {3}, {3}, 1, 11'000, 3'000, 2'000});
}

TEST_CASE("a try that came to nothing is forgotten, and so is the forming of a group") {
  auto run = stepping{};
  run.timer.begin(run.now);
  run.timer.enter(step_phase::wait, run.now += 500ms);
  CHECK_FALSE(run.step(1));
  CHECK(run.timer.take() == times_row{{2}, {1}, {1}, {1}, 1, 11'000, 3'000, 2'000});
  // Its group is lost at the barrier, and the step counts all the same.
  run.timer.begin(run.now);
  run.timer.enter(step_phase::wait, run.now += 10ms);
  run.timer.enter(step_phase::barrier, run.now += 3ms);
  run.timer.leave_out(run.now += 700ms);
  CHECK_FALSE(run.timer.end(step_id{2}, generation_id{1}, rank_id{2}, run.now += 1ms));
  CHECK(run.timer.take() == times_row{{2}, {1}, {2}, {2}, 1, 11'000, 3'000, 0});
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
