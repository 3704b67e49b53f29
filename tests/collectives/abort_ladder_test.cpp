#include "device/abort_ladder.hpp"

#include <doctest/doctest.h>

using namespace troupe::collectives;
using namespace std::chrono_literals;
using rung = abort_ladder::rung;

namespace {

constexpr abort_ladder::deadlines limits{100ms, 1s, 10s};
const auto start = abort_ladder::clock::time_point{} + 1h;

} // namespace

TEST_CASE("where NCCL can revoke, it is asked to first, and the group may be shrunk then") {
  abort_ladder ladder{true, limits};
  CHECK(ladder.begin(start).what == rung::revoke);
  CHECK(ladder.at(start + 99ms).what == rung::revoke);
  CHECK(ladder.at(start + 99ms).reason.empty());
  CHECK(ladder.on_call_ended(rung::revoke, true, start + 50ms).what == rung::done);
  CHECK(ladder.is_revoked());
}

TEST_CASE("a revocation that fails or is late gives way to the abort, after which nothing is shrunk") {
  abort_ladder fails{true, limits};
  static_cast<void>(fails.begin(start));
  CHECK(fails.on_call_ended(rung::revoke, false, start).what == rung::abort);
  CHECK(fails.on_call_ended(rung::abort, true, start).what == rung::done);
  CHECK(!fails.is_revoked());

  abort_ladder late{true, limits};
  static_cast<void>(late.begin(start));
  const auto decision = late.at(start + 100ms);
  CHECK(decision.what == rung::abort);
  CHECK(!decision.reason.empty());
  // It comes back after all, while the abort is under way: that decides.
  CHECK(late.on_call_ended(rung::revoke, true, start + 110ms).what == rung::abort);
  CHECK(late.on_call_ended(rung::abort, true, start + 120ms).what == rung::done);
  CHECK(!late.is_revoked());
}

TEST_CASE("an abort that does not come back ends the process: with leave, and the state copied out by the last") {
  for (bool is_last : {false, true}) {
    abort_ladder ladder{false, limits};
    CHECK(ladder.begin(start).what == rung::abort);
    CHECK(ladder.at(start + 100ms).what == rung::ask_leave);
    CHECK(ladder.at(start + 500ms).what == rung::ask_leave);
    const auto leave = ladder.on_leave(is_last, start + 600ms);
    CHECK(leave.what == (is_last ? rung::copy_out : rung::end_process));
    if (is_last) {
      CHECK(ladder.at(start + 5s).what == rung::copy_out);
      CHECK(ladder.on_copied({}, start + 6s).what == rung::end_process);
    }
    // Nothing leads away from the end.
    CHECK(ladder.on_call_ended(rung::abort, true, start + 7s).what == rung::end_process);
    CHECK(ladder.at(start + 100h).what == rung::end_process);
  }
}

TEST_CASE("an abort that comes back while leave is waited for spares the process") {
  abort_ladder ladder{false, limits};
  static_cast<void>(ladder.begin(start));
  static_cast<void>(ladder.at(start + 100ms));
  CHECK(ladder.on_call_ended(rung::abort, true, start + 150ms).what == rung::done);
  CHECK(ladder.on_leave(true, start + 160ms).what == rung::done);
}

TEST_CASE("without an answer, or with a refusal, the state is copied out before the end") {
  abort_ladder silent{false, limits};
  static_cast<void>(silent.begin(start));
  static_cast<void>(silent.at(start + 100ms));
  CHECK(silent.at(start + 1100ms).what == rung::copy_out);
  CHECK(silent.at(start + 12s).what == rung::end_process);

  abort_ladder refused{false, limits};
  static_cast<void>(refused.begin(start));
  static_cast<void>(refused.at(start + 100ms));
  const auto decision = refused.on_leave_refused("the driver is gone", start + 200ms);
  CHECK(decision.what == rung::copy_out);
  CHECK(decision.reason.find("the driver is gone") != std::string::npos);
  CHECK(refused.on_copied("no room", start + 300ms).what == rung::end_process);
}

TEST_CASE("an abort that fails at once is as bad as one that hangs") {
  abort_ladder ladder{false, limits};
  static_cast<void>(ladder.begin(start));
  CHECK(ladder.on_call_ended(rung::abort, false, start).what == rung::ask_leave);
}

TEST_CASE("work on a device that does not end asks for leave at once, and spares the process if it ends after all") {
  abort_ladder spared{true, limits};
  const auto decision = spared.begin_with_leave("kernels run on", start);
  CHECK(decision.what == rung::ask_leave);
  CHECK(decision.reason.find("kernels run on") == 0);
  CHECK(spared.on_let_go(start + 500ms).what == rung::done);
  CHECK(!spared.is_revoked());

  abort_ladder told{true, limits};
  static_cast<void>(told.begin_with_leave("kernels run on", start));
  CHECK(told.on_leave(false, start + 100ms).what == rung::end_process);
  // The others have been told that it goes.
  CHECK(told.on_let_go(start + 200ms).what == rung::end_process);
}

TEST_CASE("a state that cannot be copied out is said to be lost") {
  abort_ladder ladder{true, limits};
  static_cast<void>(ladder.begin_with_leave("kernels run on", start));
  static_cast<void>(ladder.on_leave(true, start + 100ms));
  CHECK(ladder.on_copied("no room", start + 200ms).reason.find("the steps since the last checkpoint are lost") !=
        std::string::npos);
}
