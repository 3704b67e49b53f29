#include <troupe/boosting/work_watch.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>

using namespace troupe::boosting;
using namespace std::chrono_literals;

TEST_CASE("who has used a thousandth of the time has worked, and who has used none has not") {
  CHECK(has_worked(1s, 1s));
  CHECK(has_worked(1ms, 1s));
  CHECK(!has_worked(999us, 1s));
  CHECK(!has_worked(0s, 1s));
  CHECK(!has_worked(0s, 0s));
}

TEST_CASE("a thread that computes in a call is alive as often as the watch looks, one that does not is at its ends") {
  std::atomic<int> said{0};
  auto watch = work_watch{[&said] { ++said; }, 1ms};
  {
    auto call = work_watch::call{watch};
    CHECK(said >= 1);
    // Would never end if nobody looked.
    while (said < 20)
      ;
  }
  auto before = said.load();
  // Outside calls nothing is said, whatever is computed.
  auto count = 0u;
  for (auto end = std::chrono::steady_clock::now() + 20ms; std::chrono::steady_clock::now() < end;)
    ++count;
  CHECK(count > 0);
  // One look may have begun before the call's end.
  CHECK(said <= before + 1);
}
