#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

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
    auto argv = std::vector<std::string>{misbehaving_program(), how, "3", here.path("runs").string(), name};
    for (const auto& node : nodes)
      argv.push_back(node.address);
    auto result = here.run(argv);
    CHECK(here.workers_vanish());
    return result;
  }

  /// The events of a kind.
  [[nodiscard]] std::vector<nlohmann::json> events(const std::string& kind, const std::string& name = "run") const {
    auto result = read_lines(here.run_directory(name) / "events.jsonl");
    std::erase_if(result, [&](const auto& each) { return each["event"] != kind; });
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

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t result = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++result;
  return result;
}

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

TEST_CASE("an error is printed once, and with a rank only where it is that rank's") {
  test_run t;
  SUBCASE("without nodes") {}
  SUBCASE("on nodes") {
    t.use_nodes();
  }
  const auto one = t.run("throw", "one");
  INFO(one.err);
  CHECK(count(one.err, "the gradient is on holiday") == 1);
  CHECK(contains(one.err, "misbehaving: rank 1 after step 2: the gradient is on holiday\n"));
  // The plan is the program's: all ranks say the same of it, before the first step.
  const auto all = t.run("no batch", "all");
  INFO(all.err);
  CHECK(all.status == exit_status{1, {}});
  CHECK(count(all.err, "step_plan.batch_samples is 0") == 1);
  CHECK(contains(all.err, "misbehaving: step_plan.batch_samples is 0: a step needs at least one sample\n"));
  CHECK(t.here.result("all")["error"]["code"] == "invalid_argument");
  CHECK(t.here.result("all")["error"]["message"].get<std::string>().starts_with("step_plan.batch_samples is 0"));
}

TEST_CASE("a program without callbacks is told on standard error where it resumes, and when nothing is left to do") {
  test_run t;
  const auto first = t.run("throw later");
  INFO(first.err);
  CHECK(first.status == exit_status{1, {}});
  CHECK(!contains(first.err, "resumes from"));
  CHECK(!contains(first.err, "nothing was left to do"));
  const auto saved = t.here.result("run")["latest_checkpoint"].get<std::string>();
  const auto second = t.run("behave");
  INFO(second.err);
  CHECK(second.status == exit_status{0, {}});
  const auto step = std::stoi(saved.substr(saved.rfind('-') + 1));
  CHECK(count(second.err, "resumes from step " + std::to_string(step) + " in " + saved + "\n") == 1);
  CHECK(!contains(second.err, "nothing was left to do"));
  const auto third = t.run("behave");
  INFO(third.err);
  CHECK(third.status == exit_status{0, {}});
  CHECK(contains(third.err,
                 "resumes from step 6 in " + t.here.result("run")["latest_checkpoint"].get<std::string>() + "\n"));
  CHECK(count(third.err, "nothing was left to do: the run in " + t.here.run_directory("run").string() +
                             " has done step 6. Begin anew with resume_mode::restart") == 1);
}

TEST_CASE("a loss that is not a number is a warning, and ends the run before its step where that is asked for") {
  test_run t;
  REQUIRE(t.run("behave", "undisturbed").status == exit_status{0, {}});
  const auto undisturbed = t.here.result("undisturbed");
  auto warned = [&](const outcome& ran, const std::string& name, const std::string& what_follows) {
    auto warnings = t.events("warning", name);
    std::erase_if(warnings, [](const auto& each) { return !contains(each["text"], "loss is nan"); });
    REQUIRE(warnings.size() == 1);
    const auto text = warnings[0]["text"].get<std::string>();
    CHECK(text.starts_with("loss is nan in step 4 on rank 1, from shard "));
    CHECK(text.ends_with(what_follows));
    CHECK(count(ran.err, "warning: " + text + "\n") == 1);
    const auto found = t.events("not_finite", name);
    REQUIRE(found.size() == 1);
    CHECK(found[0]["metric"] == "loss");
    CHECK(found[0]["value"] == "nan");
    CHECK(found[0]["step"] == 4);
    CHECK(found[0]["rank"] == 1);
  };

  const auto goes_on = t.run("diverge", "goes-on");
  INFO(goes_on.err);
  CHECK(goes_on.status == exit_status{0, {}});
  warned(goes_on, "goes-on", "; training goes on (failure.not_finite can have the run end instead)");
  const auto whole = t.here.result("goes-on");
  CHECK(whole["status"] == "completed");
  CHECK(whole["steps"] == 6);
  CHECK(whole["failures"].empty());
  // The gradient was finite.
  CHECK(whole["state_sha256"] == undisturbed["state_sha256"]);

  const auto ends = t.run("diverge and end", "ends");
  INFO(ends.err);
  CHECK(ends.status == exit_status{1, {}});
  warned(ends, "ends", "; the run ends before that step is applied (failure.not_finite)");
  const auto half = t.here.result("ends");
  INFO(half.dump(2));
  CHECK(half["status"] == "failed");
  CHECK(half["steps"] == 3);
  CHECK(contains(half["error"]["message"], "loss is nan"));
  CHECK(contains(half["error"]["message"], "step 4"));
  CHECK(contains(half["error"]["message"], "(failure.not_finite)"));
  CHECK(half["restarts"] == 0);
  CHECK(t.events("ended", "ends").at(0)["status"] == "failed");
  CHECK(contains(half["latest_checkpoint"], "step-00000003"));
  // Once the program is mended it goes on from there.
  REQUIRE(t.run("behave", "ends").status == exit_status{0, {}});
  const auto mended = t.here.result("ends");
  CHECK(mended["resumed_from_step"] == 3);
  CHECK(mended["steps"] == 6);
  CHECK(mended["state_sha256"] == undisturbed["state_sha256"]);
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
      CHECK_MESSAGE(contains(event["cause"].get<std::string>(), "exit code 3"), event.dump());
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
  CHECK(contains(message, "TROUPE_IN_PROCESS=run "));
  CHECK(result["restarts"] == 2);
  CHECK(std::ranges::count_if(result["failures"], [](const auto& each) { return each["step"] == 3; }) >= 3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(contains(message, "backtrace"));
#endif
}

TEST_CASE("a loop without end in one step of all ranks ends the run after three attempts, as a crash does") {
  test_run t;
  auto ran = t.run("loop");
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  const auto result = t.here.result("run");
  const auto message = result["error"]["message"].get<std::string>();
  INFO(message);
  CHECK(contains(message, "3 attempts ended in step 3: "));
  CHECK(contains(message, "has made no progress in user code"));
  CHECK(contains(message, "TROUPE_IN_PROCESS=run "));
  CHECK(result["restarts"] == 2);
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
