#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe::testing;

namespace {

/// Runs the misbehaving program with three workers, on nodes or without.
struct test_run {
  scratch_runs here;
  std::vector<running_node> nodes;

  void use_nodes() {
    nodes.push_back(here.start_node());
    nodes.push_back(here.start_node());
  }

  [[nodiscard]] outcome run(const std::string& how, const std::string& name = "run") {
    auto argv = std::vector<std::string>{TROUPE_MISBEHAVING, how, "3", here.path("runs").string(), name};
    for (const auto& node : nodes)
      argv.push_back(node.address);
    auto result = here.run(argv);
    CHECK(here.workers_vanish());
    return result;
  }

  /// One cause, on rank 1; all other failures are consequences.
  void check_cause(const std::string& code) const {
    auto result = here.result("run");
    INFO(result.dump(2));
    CHECK(result["status"] == "failed");
    CHECK(result["error"]["code"] == code);
    auto failures = result["failures"];
    REQUIRE(failures.size() > 0);
    CHECK(failures[0]["rank"] == 1);
    CHECK(failures[0]["code"] == code);
    CHECK(failures[0]["consequence"] == false);
    CHECK(failures[0]["message"] == result["error"]["message"]);
    for (std::size_t i = 1; i < failures.size(); ++i)
      CHECK(failures[i]["consequence"] == true);
  }
};

} // namespace

TEST_CASE("workers' output is printed with their rank and kept in a log for each") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  auto ran = t.run("behave");
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  for (const std::string rank : {"0", "1", "2"}) {
    CHECK(contains(ran.err, "[rank " + rank + "] rank " + rank + " of 3 says hello\n"));
    CHECK(contains(ran.err, "[rank " + rank + "] and goes on\n"));
    auto log = read_file(t.here.run_directory("run") / "logs" / ("worker-" + rank + ".log"));
    CHECK(contains(log, "rank " + rank + " of 3 says hello\n"));
    CHECK(contains(log, "and goes on\n"));
    CHECK(!contains(log, "[rank"));
  }
}

TEST_CASE("an exception in the training function ends the run with rank, step and text") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  auto ran = t.run("throw");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "rank 1 after step 2: the gradient is on holiday"));
  t.check_cause("user_error");
  CHECK(t.here.result("run")["failures"][0]["step"] == 3);
}

TEST_CASE("the state of a run that fails is saved by a worker that has it, and the next run goes on from there") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  auto failed = t.run("throw later");
  INFO(failed.err);
  CHECK(failed.status == exit_status{1, {}});
  t.check_cause("user_error");
  auto result = t.here.result("run");
  CHECK(result["steps"] == 4);
  CHECK(contains(result["latest_checkpoint"].get<std::string>(), "step-00000004"));
  auto again = t.run("behave");
  INFO(again.err);
  CHECK(again.status == exit_status{0, {}});
  result = t.here.result("run");
  CHECK(result["resumed_from_step"] == 4);
  CHECK(result["steps"] == 6);
  REQUIRE(t.run("behave", "undisturbed").status == exit_status{0, {}});
  CHECK(result["state_sha256"] == t.here.result("undisturbed")["state_sha256"]);
}

TEST_CASE("a run that finishes itself does so in the same step, also if a worker dies before it says so") {
  test_run t;
  auto undisturbed = t.run("finish");
  INFO(undisturbed.err);
  CHECK(undisturbed.status == exit_status{0, {}});
  const auto wanted = t.here.result("run");
  CHECK(wanted["status"] == "completed");
  CHECK(wanted["steps"] == 4);
  test_run other;
  auto ran = other.run("heal finish and die");
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  const auto result = other.here.result("run");
  CHECK(result["status"] == "completed");
  CHECK(result["steps"] == 4);
  CHECK(result["failures"].size() == 1);
  CHECK(result["state_sha256"] == wanted["state_sha256"]);
  // There is nothing left to do when it is started again.
  auto again = t.run("finish");
  CHECK(again.status == exit_status{0, {}});
  CHECK(contains(again.err, "was finished by a decision of its own in step 4"));
  CHECK(t.here.result("run")["state_sha256"] == wanted["state_sha256"]);
}

TEST_CASE("ranks that do not agree on the end are told which they are") {
  test_run t;
  auto ran = t.run("finish apart");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "step.finish() was called on"));
  CHECK(contains(ran.err, "rank 1"));
  CHECK(t.here.result("run")["error"]["code"] == "mismatch");
}

TEST_CASE("what happened to a run is in its events") {
  test_run t;
  auto ran = t.run("exit");
  CHECK(ran.status == exit_status{1, {}});
  std::vector<std::string> kinds;
  for (const auto& event : read_lines(t.here.run_directory("run") / "events.jsonl")) {
    // That workers share processors is told before they start.
    if (event["event"] != "warning")
      kinds.push_back(event["event"]);
    if (event["event"] == "failure" && event["consequence"] == false)
      CHECK(contains(event["cause"].get<std::string>(), "exit code 3"));
  }
  INFO(nlohmann::json(kinds).dump());
  CHECK(kinds.front() == "started");
  CHECK(kinds.back() == "ended");
  CHECK(std::ranges::count(kinds, "failure") >= 1);
}

TEST_CASE("a worker that exits ends the run with its exit code and last lines") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  auto ran = t.run("exit");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "rank 1"));
  CHECK(contains(ran.err, "exit code 3"));
  t.check_cause("worker_lost");
  auto lines = t.here.result("run")["failures"][0]["last_lines"].dump();
  CHECK(contains(lines, "rank 1 of 3 says hello"));
  CHECK(contains(lines, "and goes on"));
}

TEST_CASE("a worker that aborts ends the run with its signal") {
  test_run t;
  auto ran = t.run("abort");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "killed by signal 6"));
  t.check_cause("worker_lost");
  // Even though its buffers were never flushed.
  CHECK(contains(t.here.result("run")["failures"][0]["last_lines"].dump(), "rank 1 of 3 says hello"));
}

TEST_CASE("a crash that repeats in one step ends the run with step, signal, backtrace, and how to repeat it") {
  test_run t;
  auto ran = t.run("crash");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  const auto result = t.here.result("run");
  INFO(result.dump(2));
  const auto message = result["error"]["message"].get<std::string>();
  CHECK(contains(message, "3 attempts ended in step 3: "));
  CHECK(contains(message, "SIGSEGV"));
  CHECK(contains(message, "says hello"));
  CHECK(contains(message, "--workers 0 --name run"));
  CHECK(result["restarts"] == 2);
  CHECK(std::ranges::count_if(result["failures"], [](const auto& each) { return each["step"] == 3; }) >= 3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(contains(message, "backtrace"));
#endif
}

TEST_CASE("workers that end before they have joined end the run at once") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  auto ran = t.run("end-at-once");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "exit code 7"));
  CHECK(contains(ran.err, "this worker has better things to do"));
  auto result = t.here.result("run");
  CHECK(result["error"]["code"] == "worker_lost");
  // Without waiting for the join limit of 30 s.
  CHECK(result["seconds"]["total"].get<double>() < 20);
}

TEST_CASE("a body that writes tracked state before the sum is told which rule it violates") {
  test_run t;
  auto how = std::string{};
  SUBCASE("from the first step on") {
    how = "write early";
  }
  SUBCASE("from a later one on") {
    how = "write early later";
  }
  auto ran = t.run(how);
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "wrote tracked state before all_reduce"));
}

TEST_CASE("replicas that diverge end the run with tensor and rank") {
  test_run t;
  auto ran = t.run("drift");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "'weights'"));
  CHECK(contains(ran.err, "on rank 1"));
}
