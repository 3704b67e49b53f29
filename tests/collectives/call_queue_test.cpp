#include <troupe/collectives/call_queue.hpp>

#include <atomic>
#include <doctest/doctest.h>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;

namespace {

expected<void> nothing() {
  return {};
}

} // namespace

TEST_CASE("a default-constructed call is done, without an error") {
  const pending_call none;
  CHECK(none.is_done());
  CHECK(none.wait());
}

TEST_CASE("calls run one after the other, in the order in which they were started") {
  call_queue calls;
  std::vector<int> order;
  std::atomic<int> running = 0;
  auto overlap = false;
  std::vector<pending_call> pending;
  for (int i = 0; i < 100; ++i)
    pending.push_back(calls.start([&, i]() -> expected<void> {
      overlap = overlap || ++running != 1;
      order.push_back(i);
      --running;
      return {};
    }));
  for (const auto& x : pending)
    CHECK(x.wait());
  CHECK(!overlap);
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i)
    CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a call's error reaches every thread that waits for it, each time, and no other call") {
  call_queue calls;
  const auto good = calls.start(nothing);
  const auto bad = calls.start([]() -> expected<void> { return fail(errc::io_error, "worse"); });
  const auto copy = bad;
  const auto later = calls.start(nothing);
  error seen;
  std::thread other{[&] { seen = copy.wait().error(); }};
  for (int again = 0; again < 2; ++again) {
    const auto done = bad.wait();
    REQUIRE(!done);
    CHECK(done.error() == error{errc::io_error, "worse"});
  }
  other.join();
  CHECK(seen == error{errc::io_error, "worse"});
  CHECK(good.wait());
  CHECK(later.wait());
}

TEST_CASE("a call is done only after it has returned and its captures are destroyed") {
  call_queue calls;
  std::latch may_end{1};
  const auto held = std::make_shared<int>(1);
  const auto pending = calls.start([&may_end, held]() -> expected<void> {
    may_end.wait();
    return {};
  });
  CHECK(!pending.is_done());
  may_end.count_down();
  CHECK(pending.wait());
  CHECK(pending.is_done());
  CHECK(held.use_count() == 1);
}

TEST_CASE("a queue is idle when nothing is left to run, and its own calls do not wait for themselves") {
  call_queue calls;
  calls.wait_until_idle();
  std::latch may_go{1};
  std::atomic<int> done = 0;
  for (int i = 0; i < 10; ++i)
    (void)calls.start([&]() -> expected<void> {
      may_go.wait();
      calls.wait_until_idle();
      ++done;
      return {};
    });
  may_go.count_down();
  calls.wait_until_idle();
  CHECK(done == 10);
  // It can be used again.
  CHECK(calls.start(nothing).wait());
}

TEST_CASE("a stopping queue waits for the running call and ends the others without making them") {
  for (auto destroys : {false, true}) {
    std::optional<call_queue> calls;
    calls.emplace();
    std::latch has_begun{1}, may_end{1};
    std::atomic<int> made = 0;
    std::vector<pending_call> pending;
    for (int i = 0; i < 3; ++i)
      pending.push_back(calls->start([&]() -> expected<void> {
        ++made;
        has_begun.count_down();
        may_end.wait();
        return fail(errc::stopped, "its own");
      }));
    has_begun.wait();
    // Every waiting thread is notified, even while the queue is destroyed.
    std::vector<error> seen(3);
    std::vector<std::thread> waiters;
    for (std::size_t i = 0; i < 3; ++i)
      waiters.emplace_back([&, i] { seen[i] = pending[i].wait().error(); });
    std::thread stopper{[&] {
      if (destroys)
        calls.reset();
      else
        calls->stop();
    }};
    CHECK(!pending[0].is_done());
    may_end.count_down();
    stopper.join();
    for (auto& x : waiters)
      x.join();
    CHECK(seen[0] == error{errc::stopped, "its own"});
    // The second call may have begun between the end of the first and the stop.
    CHECK(seen[2].code == (made == 3 ? errc::stopped : errc::aborted));
    if (!destroys) {
      const auto late = calls->start(nothing).wait();
      REQUIRE(!late);
      CHECK(late.error().code == errc::aborted);
      calls->stop();
    }
  }
}

TEST_CASE("calls that wait when the queue stops are not made") {
  call_queue calls;
  std::latch has_begun{1};
  std::latch may_end{1};
  auto made = false;
  std::vector<pending_call> pending;
  pending.push_back(calls.start([&]() -> expected<void> {
    has_begun.count_down();
    may_end.wait();
    return {};
  }));
  has_begun.wait();
  pending.push_back(calls.start([&]() -> expected<void> {
    made = true;
    return {};
  }));
  std::thread stopper{[&] { calls.stop(); }};
  // A stopping queue accepts no more calls: from then on the second call is dropped.
  while (calls.start(nothing).is_done() == false)
    std::this_thread::yield();
  may_end.count_down();
  stopper.join();
  CHECK(pending[0].wait());
  const auto second = pending[1].wait();
  REQUIRE(!second);
  CHECK(second.error().code == errc::aborted);
  CHECK(!made);
}

TEST_CASE("many short queues come and go") {
  for (int i = 0; i < 500; ++i) {
    call_queue calls;
    const auto pending = calls.start(nothing);
    if (i % 2 == 0)
      CHECK(pending.wait());
  }
}
