#include "device/abort_escalation.hpp"

#include <doctest/doctest.h>

using namespace troupe::collectives;
using namespace std::chrono_literals;
using stage = abort_escalation::stage;

namespace {

constexpr abort_escalation::deadlines limits{100ms, 1s, 10s};
const auto start = abort_escalation::clock::time_point{} + 1h;

} // namespace

TEST_CASE("NCCL revokes first where it can, and the group can be shrunk afterwards") {
  abort_escalation escalation{true, limits};
  CHECK(escalation.begin(start).what == stage::revoke);
  CHECK(escalation.at(start + 99ms).what == stage::revoke);
  CHECK(escalation.at(start + 99ms).reason.empty());
  CHECK(escalation.on_call_ended(stage::revoke, true, start + 50ms).what == stage::done);
  CHECK(escalation.is_revoked());
}

TEST_CASE("a revocation that fails or is late is followed by an abort, after which nothing is shrunk") {
  abort_escalation fails{true, limits};
  static_cast<void>(fails.begin(start));
  CHECK(fails.on_call_ended(stage::revoke, false, start).what == stage::abort);
  CHECK(fails.on_call_ended(stage::abort, true, start).what == stage::done);
  CHECK(!fails.is_revoked());

  abort_escalation late{true, limits};
  static_cast<void>(late.begin(start));
  const auto decision = late.at(start + 100ms);
  CHECK(decision.what == stage::abort);
  CHECK(!decision.reason.empty());
  // It returns after all while the abort is running; the abort decides.
  CHECK(late.on_call_ended(stage::revoke, true, start + 110ms).what == stage::abort);
  CHECK(late.on_call_ended(stage::abort, true, start + 120ms).what == stage::done);
  CHECK(!late.is_revoked());
}

TEST_CASE("an abort that does not return ends the process, with a permit; the last holder copies the state out") {
  for (bool is_last : {false, true}) {
    abort_escalation escalation{false, limits};
    CHECK(escalation.begin(start).what == stage::abort);
    CHECK(escalation.at(start + 100ms).what == stage::request_exit);
    CHECK(escalation.at(start + 500ms).what == stage::request_exit);
    const auto leave = escalation.on_exit(is_last, start + 600ms);
    CHECK(leave.what == (is_last ? stage::copy_out : stage::end_process));
    if (is_last) {
      CHECK(escalation.at(start + 5s).what == stage::copy_out);
      CHECK(escalation.on_copied({}, start + 6s).what == stage::end_process);
    }
    // Nothing leads back from the end.
    CHECK(escalation.on_call_ended(stage::abort, true, start + 7s).what == stage::end_process);
    CHECK(escalation.at(start + 100h).what == stage::end_process);
  }
}

TEST_CASE("an abort that returns while the permit is awaited spares the process") {
  abort_escalation escalation{false, limits};
  static_cast<void>(escalation.begin(start));
  static_cast<void>(escalation.at(start + 100ms));
  CHECK(escalation.on_call_ended(stage::abort, true, start + 150ms).what == stage::done);
  CHECK(escalation.on_exit(true, start + 160ms).what == stage::done);
}

TEST_CASE("without an answer, or after an error, the state is copied out before the end") {
  abort_escalation silent{false, limits};
  static_cast<void>(silent.begin(start));
  static_cast<void>(silent.at(start + 100ms));
  CHECK(silent.at(start + 1100ms).what == stage::copy_out);
  CHECK(silent.at(start + 12s).what == stage::end_process);

  abort_escalation refused{false, limits};
  static_cast<void>(refused.begin(start));
  static_cast<void>(refused.at(start + 100ms));
  const auto decision = refused.on_exit_refused("the driver is gone", start + 200ms);
  CHECK(decision.what == stage::copy_out);
  CHECK(decision.reason.find("the driver is gone") != std::string::npos);
  CHECK(refused.on_copied("no room", start + 300ms).what == stage::end_process);
}

TEST_CASE("an abort that fails at once is as bad as one that hangs") {
  abort_escalation escalation{false, limits};
  static_cast<void>(escalation.begin(start));
  CHECK(escalation.on_call_ended(stage::abort, false, start).what == stage::request_exit);
}

TEST_CASE("work on a device that hangs requests a permit at once, and spares the process if it ends after all") {
  abort_escalation spared{true, limits};
  const auto decision = spared.begin_with_permit("kernels run on", start);
  CHECK(decision.what == stage::request_exit);
  CHECK(decision.reason.find("kernels run on") == 0);
  CHECK(spared.on_let_go(start + 500ms).what == stage::done);
  CHECK(!spared.is_revoked());

  abort_escalation escalation{true, limits};
  static_cast<void>(escalation.begin_with_permit("kernels run on", start));
  CHECK(escalation.on_exit(false, start + 100ms).what == stage::end_process);
  // The others already know that it exits.
  CHECK(escalation.on_let_go(start + 200ms).what == stage::end_process);
}

TEST_CASE("a state that cannot be copied out is reported as lost") {
  abort_escalation escalation{true, limits};
  static_cast<void>(escalation.begin_with_permit("kernels run on", start));
  static_cast<void>(escalation.on_exit(true, start + 100ms));
  CHECK(escalation.on_copied("no room", start + 200ms).reason.find("the steps since the last checkpoint are lost") !=
        std::string::npos);
}
