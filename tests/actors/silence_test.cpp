#include <troupe/actors/decisions/silence.hpp>

#include <doctest/doctest.h>

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = std::chrono::steady_clock::time_point{1000s};

constexpr auto timeout = 1500ms;

/// A process after it has run for 10 s and waited for 5 s.
const auto before = process_sample{start, 'S', 10s, 5s};

/// The same, 1.4 s later.
process_sample later(char state, std::chrono::milliseconds cpu, std::chrono::milliseconds waited) {
  return {start + 1400ms, state, 10s + cpu, 5s + waited};
}

silence_verdict judge(const process_sample& now, std::chrono::milliseconds silent_for = 1600ms) {
  return judge_silence({before, now}, {before, later('S', 10ms, 0ms)}, silent_for, timeout);
}

} // namespace

TEST_CASE("a stopped process is fenced, even if it was starved before") {
  auto verdict = judge(later('T', 0ms, 1300ms));
  CHECK(verdict.cause == silence_cause::stopped);
  CHECK(verdict.is_silent);
  CHECK(verdict.reason == "is stopped (SIGSTOP)");
}

TEST_CASE("a process that a debugger holds is silent, and the debugger is named") {
  auto held = later('t', 0ms, 0ms);
  held.tracer = 4711;
  auto verdict = judge(held);
  CHECK(verdict.cause == silence_cause::debugged);
  CHECK(verdict.is_silent);
  CHECK(verdict.reason == "is held by a debugger (process 4711)");
}

TEST_CASE("a process that has ended is fenced") {
  for (auto state : {'Z', 'X'}) {
    auto verdict = judge(process_sample{start + 1400ms, state, {}, {}});
    CHECK(verdict.cause == silence_cause::dead);
    CHECK(verdict.is_silent);
  }
}

TEST_CASE("who has waited for a processor most of the time is spared") {
  auto verdict = judge(later('S', 10ms, 1200ms));
  CHECK(verdict.cause == silence_cause::alive_but_starved);
  CHECK_FALSE(verdict.is_silent);
  CHECK(verdict.reason == "has waited for a processor for 1.2 of 1.4 s");
  CHECK(judge(later('R', 600ms, 700ms)).cause == silence_cause::alive_but_starved);
  CHECK(judge(later('R', 600ms, 699ms)).cause == silence_cause::hung);
}

TEST_CASE("waits of several threads add up") {
  auto verdict = judge(later('R', 10ms, 8000ms));
  CHECK(verdict.cause == silence_cause::alive_but_starved);
  CHECK(verdict.reason == "has threads that have waited for a processor, together for 8.0 s in 1.4 s");
}

TEST_CASE("who is ready to run and gets no processor is spared, though its wait is not counted yet") {
  auto verdict = judge(later('R', 0ms, 0ms));
  CHECK(verdict.cause == silence_cause::alive_but_starved);
  CHECK_FALSE(verdict.is_silent);
  CHECK(verdict.reason == "is ready to run and got 0.0 s of processor time in 1.4 s");
  CHECK(judge(later('R', 140ms, 0ms)).cause == silence_cause::alive_but_starved);
  CHECK(judge(later('R', 150ms, 0ms)).cause == silence_cause::hung);
}

TEST_CASE("the starved are spared up to a limit") {
  auto starved = later('R', 0ms, 1400ms);
  CHECK_FALSE(judge(starved, 14'999ms).is_silent);
  auto verdict = judge(starved, 15s);
  CHECK(verdict.is_silent);
  CHECK(verdict.cause == silence_cause::alive_but_starved);
  CHECK(verdict.reason == "has waited for a processor for 1.4 of 1.4 s, silent for 15.0 s: longer than the 15.0 s that "
                          "a starved process is given");
}

TEST_CASE("who sleeps, computes or waits for a device without answering is hung") {
  auto asleep = judge(later('S', 0ms, 10ms));
  CHECK(asleep.cause == silence_cause::hung);
  CHECK(asleep.is_silent);
  CHECK(asleep.reason == "sleeps and does not answer");
  auto busy = judge(later('R', 1300ms, 10ms));
  CHECK(busy.cause == silence_cause::hung);
  CHECK(busy.reason == "computes (1.3 s of processor time in 1.4 s) and does not answer");
  CHECK(judge(later('S', 1300ms, 10ms)).reason == busy.reason);
  auto stuck = judge(later('D', 0ms, 10ms));
  CHECK(stuck.cause == silence_cause::hung);
  CHECK(stuck.reason ==
        "is in uninterruptible sleep (a device or a file system that does not answer, or a paused container)");
}

TEST_CASE("where the kernel does not count waits, the state alone shows starvation") {
  auto no_waits = [](process_sample x) {
    x.run_delay.reset();
    return x;
  };
  for (const auto& first : {before, no_waits(before)}) {
    CHECK(judge_silence({first, no_waits(later('R', 0ms, 0ms))}, {}, 1600ms, timeout).cause ==
          silence_cause::alive_but_starved);
    CHECK(judge_silence({first, no_waits(later('S', 0ms, 0ms))}, {}, 1600ms, timeout).cause == silence_cause::hung);
  }
}

TEST_CASE("waits that one look alone has are not compared") {
  auto first = before;
  first.run_delay.reset();
  CHECK(judge_silence({first, later('S', 0ms, 0ms)}, {}, 1600ms, timeout).cause == silence_cause::hung);
}

TEST_CASE("threads that have ended take their waits with them, which is no sign of anything") {
  CHECK(judge(later('S', 0ms, -3000ms)).cause == silence_cause::hung);
}

TEST_CASE("without a first look, who is ready to run gets another one") {
  auto now = process_sample{start, 'R', 10s, 5s};
  CHECK_FALSE(judge_silence({now, now}, {}, 1600ms, timeout).is_silent);
  now.state = 'S';
  CHECK(judge_silence({now, now}, {}, 1600ms, timeout).is_silent);
}

TEST_CASE("a process is spared while its node gets no processor, and may not have heard it") {
  const auto silent = later('S', 0ms, 0ms);
  const auto busy = sample_pair{before, later('R', 20ms, 1200ms)};
  auto verdict = judge_silence({before, silent}, busy, 1600ms, timeout);
  CHECK(verdict.cause == silence_cause::alive_but_starved);
  CHECK_FALSE(verdict.is_silent);
  CHECK(verdict.reason == "sleeps and does not answer, but its node has waited for a processor for 1.2 of 1.4 s");
  CHECK(judge_silence({before, silent}, busy, spared_timeouts * timeout, timeout).is_silent);
  CHECK(judge_silence({before, later('T', 0ms, 0ms)}, busy, 1600ms, timeout).cause == silence_cause::stopped);
  // It runs while it looks at itself.
  const auto idle = sample_pair{before, later('R', 20ms, 100ms)};
  CHECK(judge_silence({before, silent}, idle, 1600ms, timeout).cause == silence_cause::hung);
}
