#include <troupe/actors/decisions/heartbeat_monitor.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

using monitor = heartbeat_monitor<int>;
using silences = std::vector<monitor::silence>;

constexpr auto timeout = 1500ms;
const auto start = monitor::clock::time_point{1000s};

/// Watches 1 and 2 from `start`, where its owner has asked for the first time.
monitor watching_two() {
  auto result = monitor{timeout};
  result.add(1, start);
  result.add(2, start);
  REQUIRE(result.silent(start).empty());
  return result;
}

/// Asks every 100 ms from after `from` until `to`; all that are reported as silent meanwhile.
silences ask(monitor& watch, monitor::clock::duration from, monitor::clock::duration to) {
  silences result;
  for (auto t = from + 100ms; t <= to; t += 100ms)
    for (const auto& x : watch.silent(start + t))
      result.push_back(x);
  return result;
}

} // namespace

TEST_CASE("a peer that was silent for longer than the timeout is reported, once") {
  auto watch = watching_two();
  CHECK(ask(watch, 0ms, 1000ms).empty());
  watch.heard(2, start + 1000ms);
  CHECK(ask(watch, 1000ms, 1500ms).empty());
  CHECK(watch.silent(start + 1501ms) == silences{{1, 1501ms}});
  CHECK(ask(watch, 1500ms, 2500ms).empty());
  CHECK(watch.silent(start + 2501ms) == silences{{2, 1501ms}});
}

TEST_CASE("a peer that is heard again may fall silent again") {
  auto watch = watching_two();
  watch.remove(2);
  CHECK(ask(watch, 0ms, 1600ms) == silences{{1, 1600ms}});
  watch.heard(1, start + 1600ms);
  CHECK(ask(watch, 1600ms, 3100ms).empty());
  CHECK(watch.silent(start + 3101ms) == silences{{1, 1501ms}});
}

TEST_CASE("a peer that was spared is reported again, with all its silence") {
  auto watch = watching_two();
  watch.remove(2);
  CHECK(ask(watch, 0ms, 1600ms) == silences{{1, 1600ms}});
  watch.spare(1);
  CHECK(watch.silent(start + 1700ms) == silences{{1, 1700ms}});
  CHECK(watch.silent(start + 1800ms).empty());
}

TEST_CASE("a first look is due after half the timeout, once for each silence") {
  auto watch = watching_two();
  watch.heard(2, start + 500ms);
  CHECK(watch.overdue(start + 750ms).empty());
  CHECK(watch.overdue(start + 751ms) == silences{{1, 751ms}});
  CHECK(watch.overdue(start + 752ms).empty());
  watch.heard(1, start + 800ms);
  CHECK(watch.overdue(start + 1500ms) == silences{{2, 1000ms}});
  CHECK(watch.overdue(start + 1600ms) == silences{{1, 800ms}});
}

TEST_CASE("a watcher that comes late reports nobody and restarts all windows") {
  auto watch = watching_two();
  CHECK(ask(watch, 0ms, 1000ms).empty());
  CHECK(watch.overdue(start + 1000ms).size() == 2);
  // It was stopped itself; the beats of the meantime are not read yet.
  CHECK(watch.silent(start + 9000ms).empty());
  watch.heard(2, start + 9001ms);
  CHECK(ask(watch, 9000ms, 10500ms).empty());
  CHECK(watch.overdue(start + 10500ms) == silences{{1, 1500ms}, {2, 1499ms}});
  CHECK(watch.silent(start + 10501ms) == silences{{1, 1501ms}});
}

TEST_CASE("late is more than half the timeout, not less") {
  auto watch = watching_two();
  CHECK(watch.silent(start + 750ms).empty());
  CHECK(watch.silent(start + 1500ms).empty());
  CHECK(watch.silent(start + 2250ms).size() == 2);

  watch = watching_two();
  CHECK(watch.silent(start + 750ms).empty());
  CHECK(watch.silent(start + 1501ms).empty());
  CHECK(watch.silent(start + 2250ms).empty());
}

TEST_CASE("the first question counts as late and reports nobody") {
  auto watch = monitor{timeout};
  watch.add(1, start);
  CHECK(watch.silent(start + 60s).empty());
  CHECK(ask(watch, 60s, 61500ms).empty());
  CHECK(watch.silent(start + 61501ms).size() == 1);
}

TEST_CASE("heartbeats of peers that are not watched have no effect") {
  auto watch = watching_two();
  watch.remove(1);
  watch.heard(1, start + 100ms);
  watch.heard(3, start + 100ms);
  watch.spare(3);
  CHECK(ask(watch, 0ms, 1600ms) == silences{{2, 1600ms}});
}

TEST_CASE("a peer that is added later has a whole window") {
  auto watch = watching_two();
  CHECK(ask(watch, 0ms, 1400ms).empty());
  watch.add(1, start + 1400ms);
  CHECK(ask(watch, 1400ms, 1600ms) == silences{{2, 1600ms}});
  CHECK(ask(watch, 1600ms, 2900ms).empty());
  CHECK(watch.silent(start + 2901ms) == silences{{1, 1501ms}});
}

TEST_CASE("a heartbeat read late does not take back a later one") {
  auto watch = watching_two();
  watch.remove(2);
  CHECK(ask(watch, 0ms, 700ms).empty());
  watch.heard(1, start + 700ms);
  watch.heard(1, start + 100ms);
  CHECK(ask(watch, 700ms, 2200ms).empty());
  CHECK(watch.silent(start + 2201ms) == silences{{1, 1501ms}});
}

TEST_CASE("a peer that may be silent, too, and is not reported yet, is quiet") {
  auto watch = watching_two();
  watch.heard(2, start + 500ms);
  CHECK_FALSE(watch.anyone_quiet(start + 750ms));
  REQUIRE(ask(watch, 0ms, 1600ms) == silences{{1, 1600ms}});
  // 1 is reported; 2 is overdue.
  CHECK(watch.anyone_quiet(start + 1600ms));
  watch.heard(2, start + 1600ms);
  CHECK_FALSE(watch.anyone_quiet(start + 1600ms));
}

TEST_CASE("a heartbeat tells whether its sender was reported as silent") {
  auto watch = watching_two();
  CHECK_FALSE(watch.heard(1, start + 100ms));
  REQUIRE(ask(watch, 0ms, 1700ms).size() == 2);
  CHECK(watch.heard(1, start + 1700ms));
  CHECK_FALSE(watch.heard(1, start + 1800ms));
  CHECK_FALSE(watch.heard(7, start + 1800ms));
}
