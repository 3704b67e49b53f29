#include "pauses.hpp"
#include "scratch_directory.hpp"

#include <doctest/doctest.h>

#include <fstream>

using namespace troupe;
using namespace troupe::chaos;
using namespace std::chrono_literals;

TEST_CASE("the longest pause of each generation counts, unless a lasting fault overlaps one of them") {
  const auto scratch = testing::scratch_directory{};
  const auto events = scratch.path() / "events.jsonl";
  std::ofstream{events} << R"({"time":"1970-01-01T00:00:10.500Z","event":"pause","generation":2,"seconds":0.25}
{"time":"1970-01-01T00:00:10.750Z","event":"pause","generation":2,"seconds":0.5}
{"time":"1970-01-01T00:00:20.000Z","event":"warning","text":"none"}
{"time":"1970-01-01T00:00:20.000Z","event":"pause","generation":3,"seconds":2}
{"time":"1970-01-01T00:00:25.000Z","event":"started"}
{"time":"1970-01-01T00:00:29.000Z","event":"pause","generation":2,"seconds":1.5}
{"time":"1970-01-01T00:00:30.000Z","event":"pause","generation":4,"sec)";
  CHECK(pauses_outside(events, {}) == std::vector{0.5, 2.0, 1.5});
  const auto at = [](auto since) { return std::chrono::system_clock::time_point{since}; };
  CHECK(pauses_outside(events, {{at(11s), at(18s)}}) == std::vector{0.5, 2.0, 1.5});
  CHECK(pauses_outside(events, {{at(11s), at(18001ms)}}) == std::vector{0.5, 1.5});
  CHECK(pauses_outside(events, {{at(10260ms), at(10300ms)}}) == std::vector{2.0, 1.5});
  CHECK(pauses_outside(scratch.path() / "missing", {}).empty());
}
