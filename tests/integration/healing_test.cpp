#include "scratch_runs.hpp"

#include <csignal>
#include <cstdint>
#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// Runs that lose workers, and end when they have.
struct test_run {
  scratch_runs here;

  [[nodiscard]] std::vector<std::string> arguments(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--steps", "1000000"});
    return here.charlm(name, more);
  }

  /// Kills the workers of `ranks` one after another during training, with this many workers in the group each time and
  /// in the end, or with any number; returns the run's result.
  nlohmann::json disturbed(const std::string& name, const std::vector<int>& ranks, std::vector<std::string> more,
                           std::optional<std::size_t> group = {}) {
    auto driver = here.start(arguments(name, std::move(more)));
    std::uint64_t step = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      here.await_step(driver, name, step);
      const auto generations = here.events(name, "generation").size();
      send_signal(here.worker_of_rank(ranks[i]), SIGKILL);
      here.await_failures(driver, name, i + 1);
      if (group)
        here.await_group(driver, name, *group, generations);
      step = here.last_step(name) + 150;
    }
    return stop(driver, name);
  }

  /// Ends the run, and returns its result. Its state must be that of an undisturbed run of as many steps.
  nlohmann::json stop(child_process& driver, const std::string& name) {
    auto result = here.stop(driver, name);
    INFO(result.dump(2));
    CHECK(result["status"] == "stopped");
    CHECK(result["state_sha256"] == here.state_after(result["steps"]));
    CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
    CHECK(here.workers_vanish());
    return result;
  }
};

} // namespace

TEST_CASE("killed workers cost no step and no bit, down to one survivor, on every transport") {
  test_run t;
  for (const std::string transport : {"shm", "tcp"}) {
    auto result = t.disturbed(transport, {2, 0, 3}, {"--workers", "4", "--transport", transport});
    INFO(transport << result.dump(2));
    // The injected failures, and no others.
    REQUIRE(result["failures"].size() == 3);
    for (const auto& failure : result["failures"])
      CHECK(failure["code"] == "worker_lost");
  }
}

TEST_CASE("workers on two nodes survive each other's loss and the loss of a node") {
  test_run t;
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  const auto nodes = one.address + "," + two.address;
  auto result = t.disturbed("workers", {1, 2}, {"--workers", "4", "--nodes", nodes, "--placement", "spread"});
  CHECK(result["failures"].size() == 2);

  auto driver = t.here.start(t.arguments("node", {"--workers", "4", "--nodes", nodes, "--placement", "spread"}));
  t.here.await_step(driver, "node");
  two.process.signal(SIGKILL);
  t.here.await_failures(driver, "node", 2);
  result = t.stop(driver, "node");
  REQUIRE(result["failures"].size() == 2);
  CHECK(result["failures"][0]["code"] == "node_lost");
}

TEST_CASE("a worker killed during checkpoints costs none of them") {
  test_run t;
  const auto result = t.disturbed("often", {1, 3, 0}, {"--workers", "4", "--checkpoint-every", "5"});
  const auto failed = t.here.events("often", "checkpoint_failed");
  CHECK_MESSAGE(failed.empty(), nlohmann::json(failed).dump(2));
}

TEST_CASE("a lost worker is replaced without any effect on the result") {
  test_run t;
  auto result = t.disturbed("replaced", {1, 0}, {"--workers", "2"}, 2);
  INFO(result.dump(2));
  CHECK(result["restarts"] == 0);
  REQUIRE(result["failures"].size() == 2);
  CHECK(result["workers"].size() >= 4);
  auto sizes = std::vector<int>{};
  for (const auto& each : result["generations"]) {
    sizes.push_back(each["workers"]);
    CHECK(each["steps_redone"] <= 1);
    CHECK(each["pause_seconds"] < 60.0);
  }
  // One worker is left, and then there are two again.
  CHECK(sizes == std::vector{1, 2, 1, 2});
}

TEST_CASE("a joiner that receives the state while the others train changes no bit, on one node and on two") {
  test_run t;
  // It repeats steps with evaluations and checkpoints among them.
  auto staged = std::vector<std::string>{"--background-transfer-above", "0", "--evaluate-every", "20",
                                         "--checkpoint-every",          "30"};
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  auto elsewhere =
      std::vector<std::string>{"--workers", "4", "--nodes", one.address + "," + two.address, "--placement", "spread"};
  elsewhere.insert(elsewhere.end(), staged.begin(), staged.end());
  staged.insert(staged.end(), {"--workers", "3"});
  for (const auto& [name, arguments] : {std::pair{"here", staged}, std::pair{"elsewhere", elsewhere}}) {
    const auto workers = std::string{name} == "here" ? 3u : 4u;
    auto result = t.disturbed(name, {1, 0}, arguments, workers);
    INFO(result.dump(2));
    CHECK(result["restarts"] == 0);
    REQUIRE(result["failures"].size() == 2);
    auto joined = 0;
    for (const auto& each : result["generations"]) {
      CHECK(each["steps_redone"] <= 1);
      joined += contains(each["reason"].get<std::string>(), "join") ? 1 : 0;
    }
    CHECK(joined >= 1);
  }
}

TEST_CASE("a frozen worker is found, killed and replaced") {
  test_run t;
  auto driver = t.here.start(t.arguments("frozen", {"--workers", "3"}));
  t.here.await_step(driver, "frozen");
  auto victim = t.here.worker_of_rank(1);
  send_signal(victim, SIGSTOP);
  t.here.await_failures(driver, "frozen", 1);
  const auto result = t.stop(driver, "frozen");
  REQUIRE(result["failures"].size() == 1);
  CHECK(result["failures"][0]["pid"] == victim);
  CHECK(contains(result["failures"][0]["message"], "is stopped"));
}

TEST_CASE("frozen workers that alone have the state are waited for, and go on") {
  test_run t;
  auto driver = t.here.start(t.arguments("thawed", {"--workers", "2"}));
  t.here.await_step(driver, "thawed", 200);
  const auto workers = t.here.workers();
  for (auto pid : workers)
    send_signal(pid, SIGSTOP);
  t.here.await(driver, [&] { return contains(driver.err(), "No other worker has the run's state"); });
  // One of them may have been taken for the only one that is silent.
  CHECK(!t.here.workers().empty());
  for (auto pid : workers)
    send_signal(pid, SIGCONT);
  t.here.await(driver, [&] { return contains(driver.err(), "answers again after"); });
  const auto result = t.stop(driver, "thawed");
  CHECK(result["restarts"] == 0);
}

TEST_CASE("a run that has lost all workers restarts from its latest checkpoint") {
  test_run t;
  auto driver = t.here.start(t.arguments("again", {"--workers", "2", "--checkpoint-every", "100"}));
  t.here.await_step(driver, "again", 250);
  for (auto pid : t.here.workers())
    send_signal(pid, SIGKILL);
  t.here.await(driver, [&] {
    const auto generations = t.here.events("again", "generation");
    return !generations.empty() && generations.back()["attempt"] == 2;
  });
  const auto result = t.stop(driver, "again");
  INFO(result.dump(2));
  CHECK(result["restarts"] == 1);
  CHECK(result["resumed_from_step"] == 0);
  CHECK(result["generations"].back()["attempt"] == 2);
  // The checkpoint of step 200 may still have been in flight.
  CHECK(result["generations"].back()["commit_point_step"] >= 100);
}

TEST_CASE("a frozen node is given up, and used again when it answers") {
  test_run t;
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  auto driver = t.here.start(
      t.arguments("thawed", {"--workers", "4", "--nodes", one.address + "," + two.address, "--placement", "spread"}));
  t.here.await_step(driver, "thawed");
  // With its workers: all are resumed later and find themselves rejected.
  auto theirs = std::vector<pid_t>{};
  for (auto rank : {2, 3})
    theirs.push_back(t.here.worker_of_rank(rank));
  two.process.signal(SIGSTOP);
  for (auto pid : theirs)
    send_signal(pid, SIGSTOP);
  t.here.await(driver, [&] { return contains(driver.err(), "has said nothing"); });
  two.process.signal(SIGCONT);
  for (auto pid : theirs)
    send_signal(pid, SIGCONT);
  t.here.await(driver, [&] { return contains(driver.err(), "answers again"); });
  auto all_gone = [&] { return ::kill(theirs[0], 0) != 0 && ::kill(theirs[1], 0) != 0; };
  CHECK(becomes_true(all_gone, std::chrono::milliseconds{10'000}));
  const auto result = t.stop(driver, "thawed");
  CHECK(result["failures"].size() == 2);
  CHECK(result["restarts"] == 0);
}

TEST_CASE("a run whose only node is frozen goes on with the same workers when it answers") {
  test_run t;
  auto node = t.here.start_node();
  // Its workers train on, and wait only for the driver; or they stop, too.
  for (const auto freezes_workers : {false, true}) {
    CAPTURE(freezes_workers);
    const auto name = std::string{freezes_workers ? "frozen" : "silent"};
    auto driver = t.here.start(t.arguments(name, {"--workers", "2", "--nodes", node.address}));
    t.here.await_step(driver, name);
    const auto workers = freezes_workers ? t.here.workers() : std::vector<pid_t>{};
    node.process.signal(SIGSTOP);
    for (auto pid : workers)
      send_signal(pid, SIGSTOP);
    t.here.await(driver, [&] { return contains(driver.err(), "the run waits for it"); });
    for (auto pid : workers)
      send_signal(pid, SIGCONT);
    node.process.signal(SIGCONT);
    t.here.await(driver, [&] { return contains(driver.err(), "answers again"); });
    const auto result = t.stop(driver, name);
    CHECK(result["restarts"] == 0);
    CHECK(result["failures"].empty());
    CHECK(result["generations"].empty());
  }
}

TEST_CASE("a node that receives SIGTERM hands over its workers, and no step is computed twice") {
  test_run t;
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  auto driver = t.here.start(
      t.arguments("drained", {"--workers", "4", "--nodes", one.address + "," + two.address, "--placement", "spread"}));
  t.here.await_step(driver, "drained");
  two.process.signal(SIGTERM);
  CHECK(two.process.wait(std::chrono::milliseconds{20'000}) == exit_status{0, {}});
  t.here.await(driver, [&] { return !t.here.events("drained", "generation").empty(); });
  const auto result = t.stop(driver, "drained");
  INFO(result.dump(2));
  CHECK(result["failures"].empty());
  REQUIRE(!result["generations"].empty());
  for (const auto& each : result["generations"])
    CHECK(each["steps_redone"] == 0);
}

TEST_CASE("a run with a range of workers starts with those that fit and grows with the nodes") {
  test_run t;
  auto one = t.here.start_node({"--cpus", "1"});
  auto two = t.here.start_node({"--cpus", "2"});
  // The second node does not exist yet.
  two.process.signal(SIGINT);
  two.process.wait();
  auto driver = t.here.start(t.arguments("grown", {"--workers", "1-3", "--nodes", one.address + "," + two.address}));
  t.here.await_step(driver, "grown");
  CHECK(t.here.workers().size() == 1);
  auto later = t.here.start_node({"--cpus", "2", "--listen", two.address});
  t.here.await(driver, [&] { return t.here.workers().size() == 3; });
  t.here.await_group(driver, "grown", 3);
  const auto result = t.stop(driver, "grown");
  INFO(result.dump(2));
  CHECK(result["failures"].empty());
  REQUIRE(!result["generations"].empty());
  CHECK(result["generations"].back()["workers"] == 3);
}
