#include <troupe/boosting/work_watch.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>

using namespace troupe::boosting;
using namespace std::chrono_literals;

TEST_CASE("a thread that used a thousandth of the time has worked, and one that used none has not") {
  CHECK(has_worked(1s, 1s));
  CHECK(has_worked(1ms, 1s));
  CHECK(!has_worked(999us, 1s));
  CHECK(!has_worked(0s, 1s));
  CHECK(!has_worked(0s, 0s));
}

TEST_CASE("a computing thread sends heartbeats at the watch's interval, an idle one only at the ends of a call") {
  std::atomic<int> said{0};
  auto watch = work_watch{[&said] { ++said; }, 1ms};
  {
    auto call = work_watch::call{watch};
    CHECK(said >= 1);
    // Ends only if the watch sends heartbeats.
    while (said < 20)
      ;
  }
  auto before = said.load();
  // Outside of calls there are no heartbeats, whatever is computed.
  auto count = 0u;
  for (auto end = std::chrono::steady_clock::now() + 20ms; std::chrono::steady_clock::now() < end;)
    ++count;
  CHECK(count > 0);
  // One check may have started before the call's end.
  CHECK(said <= before + 1);
}
