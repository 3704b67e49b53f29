#include <troupe/actors/decisions/worker_watch.hpp>

#include <doctest/doctest.h>

#include <map>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = worker_watch::clock::time_point{1000s};
const auto run = run_id{"run"};

constexpr auto timeout = 1000ms;
constexpr auto first = worker_id{1};
constexpr auto second = worker_id{2};

worker_beat beat_of(worker_id worker) {
  worker_beat result;
  result.run = run;
  result.worker = worker;
  return result;
}

/// A node that judges every 200 ms, as the real one does.
struct node {
  worker_watch watch{timeout};
  worker_watch::clock::time_point now = start;
  /// The states of the processes; those that are not here cannot be sampled.
  std::map<worker_id, char> states = {{first, 'S'}, {second, 'S'}};
  std::vector<worker_watch::finding> findings = {};

  void judge_until(std::chrono::milliseconds time) {
    while (now < start + time) {
      now += 200ms;
      auto found = watch.judge(now, [this](worker_id worker) -> expected<worker_watch::samples> {
        if (!states.contains(worker))
          return fail(errc::io_error, "no such process");
        return worker_watch::samples{{now, states[worker], 1s, 0s}, {now, 'S', 1s, 0s}};
      });
      findings.insert(findings.end(), found.begin(), found.end());
    }
  }
};

} // namespace

TEST_CASE("a heartbeat is reported once, and kept as the last one") {
  node x;
  x.watch.add(first, x.now);
  CHECK(x.watch.last_beat(first) == nullptr);
  x.watch.heard(beat_of(first), x.now);
  auto report = x.watch.take_report(run);
  CHECK(report.run == run);
  REQUIRE(report.workers.size() == 1);
  CHECK(report.workers[0].worker == first);
  CHECK(report.silent.empty());
  CHECK(x.watch.take_report(run).workers.empty());
  REQUIRE(x.watch.last_beat(first) != nullptr);
  x.watch.remove(first);
  CHECK(x.watch.last_beat(first) == nullptr);
  CHECK(x.watch.take_report(run) == node_beat{run, {}});
}

TEST_CASE("a stopped worker is reported as silent until it is heard again") {
  node x;
  x.watch.add(first, x.now);
  x.states[first] = 'T';
  x.judge_until(1000ms);
  CHECK(x.findings.empty());
  x.judge_until(4000ms);
  REQUIRE(x.findings.size() == 1);
  CHECK(x.findings[0].worker == first);
  CHECK(x.findings[0].text == "is silent: its process is stopped (SIGSTOP)");
  for (int i = 0; i < 2; ++i) {
    auto report = x.watch.take_report(run);
    REQUIRE(report.silent.size() == 1);
    CHECK(report.silent[0].worker == first);
    CHECK(report.silent[0].why == "its process is stopped (SIGSTOP)");
  }
  x.watch.heard(beat_of(first), x.now);
  CHECK(x.watch.take_report(run).silent.empty());
}

TEST_CASE("a worker that a debugger holds is judged again, and reported once for each kind of silence") {
  node x;
  x.watch.add(first, x.now);
  x.states[first] = 't';
  x.judge_until(4000ms);
  REQUIRE(x.findings.size() == 1);
  CHECK(x.findings[0].text == "is silent: its process is held by a debugger");
  auto report = x.watch.take_report(run);
  REQUIRE(report.silent.size() == 1);
  CHECK(report.silent[0].kind == silence_kind::debugged);
  // The debugger has gone, and left it stopped.
  x.states[first] = 'T';
  x.judge_until(8000ms);
  CHECK(x.findings.size() == 2);
  report = x.watch.take_report(run);
  REQUIRE(report.silent.size() == 1);
  CHECK(report.silent[0].kind == silence_kind::frozen);
  x.watch.heard(beat_of(first), x.now);
  CHECK(x.watch.take_report(run).silent.empty());
}

TEST_CASE("a worker that its debugger lets go has as long for a heartbeat as any other") {
  node x;
  x.watch.add(first, x.now);
  x.states[first] = 't';
  // It is judged once more just before it is let go.
  x.judge_until(3400ms);
  x.states[first] = 'S';
  x.judge_until(4400ms);
  auto report = x.watch.take_report(run);
  REQUIRE(report.silent.size() == 1);
  CHECK(report.silent[0].kind == silence_kind::debugged);
  // Nor for ever.
  x.judge_until(6400ms);
  report = x.watch.take_report(run);
  REQUIRE(report.silent.size() == 1);
  CHECK(report.silent[0].kind == silence_kind::frozen);
}

TEST_CASE("a worker that was killed is not silent, and one that has ended is forgotten") {
  node x;
  x.watch.add(first, x.now);
  x.watch.add(second, x.now);
  x.states = {{first, 'T'}, {second, 'T'}};
  x.judge_until(2000ms);
  CHECK(x.watch.take_report(run).silent.size() == 2);
  x.watch.expect_end(first);
  CHECK(x.watch.take_report(run).silent.size() == 1);
  x.watch.remove(second);
  CHECK(x.watch.take_report(run).silent.empty());
  x.findings.clear();
  x.judge_until(10000ms);
  CHECK(x.findings.empty());
}

TEST_CASE("workers that fall silent one after the other are reported together") {
  node x;
  x.watch.add(first, x.now);
  x.watch.add(second, x.now);
  x.states = {{first, 'T'}, {second, 'T'}};
  x.judge_until(400ms);
  x.watch.heard(beat_of(second), x.now);
  x.judge_until(1200ms);
  // The first is overdue by now; the second may be about to be.
  CHECK(x.findings.empty());
  x.judge_until(1800ms);
  CHECK(x.findings.size() == 2);
}

TEST_CASE("a worker whose process cannot be sampled is looked at again") {
  node x;
  x.watch.add(first, x.now);
  x.states.clear();
  x.judge_until(1600ms);
  REQUIRE_FALSE(x.findings.empty());
  CHECK(x.findings[0].text == "is silent, and its process cannot be sampled: no such process");
  CHECK(x.watch.take_report(run).silent.empty());
  x.states[first] = 'T';
  x.judge_until(2000ms);
  CHECK(x.watch.take_report(run).silent.size() == 1);
}
