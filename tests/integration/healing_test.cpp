#include "scratch_runs.hpp"

#include <csignal>
#include <cstdint>
#include <doctest/doctest.h>
#include <vector>

using namespace troupe::testing;

namespace {

constexpr std::uint64_t all_steps = 12'000;

/// Runs that are long enough to lose workers, and the same runs undisturbed.
struct test_run {
  scratch_runs here;

  [[nodiscard]] std::vector<std::string> arguments(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--steps", std::to_string(all_steps)});
    return here.charlm(name, more);
  }

  std::string undisturbed() {
    auto ran = here.run(arguments("undisturbed", {"--workers", "1"}));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return here.result("undisturbed")["state_sha256"];
  }

  /// Kills the workers of `ranks` one after another during training; returns the run's result.
  nlohmann::json disturbed(const std::string& name, const std::vector<int>& ranks, std::vector<std::string> more) {
    auto driver = here.start(arguments(name, std::move(more)));
    std::uint64_t step = 0;
    for (auto rank : ranks) {
      here.await_step(driver, name, step);
      send_signal(here.worker_of_rank(rank), SIGKILL);
      step += 150;
    }
    auto status = driver.wait();
    INFO(driver.err());
    REQUIRE(status == exit_status{0, {}});
    CHECK(here.workers_vanish());
    return here.result(name);
  }
};

} // namespace

TEST_CASE("killed workers cost no step and no bit, down to one survivor, on every transport") {
  test_run t;
  const auto wanted = t.undisturbed();
  for (const std::string transport : {"shm", "tcp"}) {
    auto result = t.disturbed(transport, {2, 0, 3}, {"--workers", "4", "--transport", transport});
    INFO(transport << result.dump(2));
    CHECK(result["status"] == "completed");
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
    CHECK(result["steps"] == all_steps);
    // The injected failures, and no others.
    REQUIRE(result["failures"].size() == 3);
    for (const auto& failure : result["failures"])
      CHECK(failure["code"] == "worker_lost");
  }
}

TEST_CASE("workers on two nodes survive each other's loss and the loss of a node") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  const auto nodes = one.address + "," + two.address;
  auto result = t.disturbed("workers", {1, 2}, {"--workers", "4", "--nodes", nodes, "--placement", "spread"});
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["failures"].size() == 2);

  auto driver = t.here.start(t.arguments("node", {"--workers", "4", "--nodes", nodes, "--placement", "spread"}));
  t.here.await_step(driver, "node");
  two.process.signal(SIGKILL);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  result = t.here.result("node");
  CHECK(result["state_sha256"] == wanted);
  REQUIRE(result["failures"].size() == 2);
  CHECK(result["failures"][0]["code"] == "node_lost");
}

TEST_CASE("a worker killed during checkpoints costs none of them") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto result = t.disturbed("often", {1, 3, 0}, {"--workers", "4", "--checkpoint-every", "5"});
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}

TEST_CASE("a lost worker is replaced without any effect on the result") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto result = t.disturbed("replaced", {1, 0}, {"--workers", "2"});
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
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
  const auto wanted = t.undisturbed();
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
    auto result = t.disturbed(name, {1, 0}, arguments);
    INFO(result.dump(2));
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["restarts"] == 0);
    REQUIRE(result["failures"].size() == 2);
    auto joined = 0;
    for (const auto& each : result["generations"]) {
      CHECK(each["steps_redone"] <= 1);
      joined += contains(each["reason"].get<std::string>(), "join") ? 1 : 0;
    }
    CHECK(joined >= 1);
    CHECK(result["generations"].back()["workers"] == (std::string{name} == "here" ? 3 : 4));
  }
}

TEST_CASE("a frozen worker is found, killed and replaced") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto driver = t.here.start(t.arguments("frozen", {"--workers", "3"}));
  t.here.await_step(driver, "frozen");
  auto victim = t.here.worker_of_rank(1);
  send_signal(victim, SIGSTOP);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("frozen");
  CHECK(result["state_sha256"] == wanted);
  REQUIRE(result["failures"].size() == 1);
  CHECK(result["failures"][0]["pid"] == victim);
  CHECK(contains(result["failures"][0]["message"], "is stopped"));
  CHECK(t.here.workers_vanish());
}

TEST_CASE("frozen workers that alone have the state are waited for, and go on") {
  test_run t;
  const auto wanted = t.undisturbed();
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
  const auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  CHECK(contains(driver.err(), "answers again after"));
  const auto result = t.here.result("thawed");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["restarts"] == 0);
  CHECK(t.here.workers_vanish());
}

TEST_CASE("a run that has lost all workers restarts from its latest checkpoint") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto driver = t.here.start(t.arguments("again", {"--workers", "2", "--checkpoint-every", "100"}));
  t.here.await_step(driver, "again", 250);
  for (auto pid : t.here.workers())
    send_signal(pid, SIGKILL);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("again");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
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
  auto driver = t.here.start(t.here.charlm("thawed", {"--workers", "4", "--nodes", one.address + "," + two.address,
                                                      "--placement", "spread", "--steps", "1000000"}));
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
  driver.signal(SIGTERM);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{143, {}});
  auto result = t.here.result("thawed");
  CHECK(result["failures"].size() == 2);
  CHECK(result["restarts"] == 0);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
  auto same = t.here.run(t.here.charlm("twin", {"--workers", "1", "--steps", result["steps"].dump()}));
  INFO(same.err);
  CHECK(t.here.result("twin")["state_sha256"] == result["state_sha256"]);
}

TEST_CASE("a run whose only node is frozen goes on with the same workers when it answers") {
  test_run t;
  const auto wanted = t.undisturbed();
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
    auto status = driver.wait();
    INFO(driver.err());
    REQUIRE(status == exit_status{0, {}});
    CHECK(contains(driver.err(), "answers again"));
    auto result = t.here.result(name);
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["restarts"] == 0);
    CHECK(result["failures"].empty());
    CHECK(result["generations"].empty());
  }
}

TEST_CASE("a node that receives SIGTERM hands over its workers, and no step is computed twice") {
  test_run t;
  const auto wanted = t.undisturbed();
  auto one = t.here.start_node();
  auto two = t.here.start_node();
  auto driver = t.here.start(
      t.arguments("drained", {"--workers", "4", "--nodes", one.address + "," + two.address, "--placement", "spread"}));
  t.here.await_step(driver, "drained");
  two.process.signal(SIGTERM);
  CHECK(two.process.wait(std::chrono::milliseconds{20'000}) == exit_status{0, {}});
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("drained");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["failures"].empty());
  REQUIRE(!result["generations"].empty());
  for (const auto& each : result["generations"])
    CHECK(each["steps_redone"] == 0);
}

TEST_CASE("a run with a range of workers starts with those that fit and grows with the nodes") {
  test_run t;
  const auto wanted = t.undisturbed();
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
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("grown");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["failures"].empty());
  REQUIRE(!result["generations"].empty());
  CHECK(result["generations"].back()["workers"] == 3);
}
