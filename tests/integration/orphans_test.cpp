#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace troupe::testing;

namespace {

/// More steps than any test waits for.
std::vector<std::string> for_long(const std::string& workers, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--steps", "100000000", "--workers", workers});
  return more;
}

/// Two nodes and a driver that trains with two workers on each.
struct two_nodes {
  scratch_runs here;
  running_node one = here.start_node();
  running_node two = here.start_node();

  [[nodiscard]] std::vector<std::string> arguments(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--nodes", one.address + "," + two.address, "--placement", "spread"});
    return here.charlm(name, more);
  }

  /// Starts a long run and checks that all its workers are on the expected nodes.
  [[nodiscard]] child_process start(const std::string& name, const std::vector<std::string>& more = {}) {
    auto driver = here.start(arguments(name, for_long("4", more)));
    here.await_step(driver, name);
    auto workers = here.workers();
    REQUIRE(workers.size() == 4);
    for (const auto* node : {&one, &two})
      CHECK(std::ranges::count_if(workers, [&](pid_t pid) { return parent_of(pid) == node->process.pid(); }) == 2);
    std::set<pid_t> sessions;
    for (auto pid : workers) {
      sessions.insert(session_of(pid));
      CHECK_MESSAGE(contains(one.process.err() + two.process.err(), "is process " + std::to_string(pid)),
                    "the nodes' output does not tell of worker process " << pid);
    }
    CHECK(sessions.size() == 4);
    CHECK(!sessions.contains(session_of(driver.pid())));
    return driver;
  }

  /// The remaining nodes still work.
  void check_service(const std::string& nodes) {
    auto ran = here.run(here.charlm("after", {"--nodes", nodes, "--workers", "2"}));
    INFO(ran.err);
    CHECK(ran.status == exit_status{0, {}});
    CHECK(here.workers_vanish());
  }
};

} // namespace

TEST_CASE("a killed driver without a grace period takes its workers with it, and its nodes serve the next run") {
  two_nodes t;
  auto driver = t.start("killed", {"--driver-grace", "0"});
  auto workers = watch_all(t.here.workers());
  driver.signal(SIGKILL);
  CHECK(driver.wait() == exit_status{{}, SIGKILL});
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(t.here.workers_vanish());
  CHECK(t.one.process.running());
  CHECK(t.two.process.running());
  t.check_service(t.one.address + "," + t.two.address);
}

TEST_CASE("the workers of a killed driver live on for the grace period, and then end") {
  two_nodes t;
  auto driver = t.start("killed", {"--driver-grace", "2"});
  const auto workers = watch_all(t.here.workers());
  driver.signal(SIGKILL);
  driver.wait();
  t.here.await(t.one.process, [&] { return contains(t.one.process.err(), "its workers go on"); });
  CHECK(t.here.workers().size() == 4);
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(t.here.workers_vanish());
  t.check_service(t.one.address + "," + t.two.address);
}

TEST_CASE("a killed node without allowed failures ends its workers and the run, whose result names the node") {
  two_nodes t;
  auto driver = t.start("lost", {"--max-failures", "0"});
  auto workers = watch_all(t.here.workers());
  t.two.process.signal(SIGKILL);
  auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(driver.err(), t.two.address));
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(t.here.workers_vanish());
  auto result = t.here.result("lost");
  CHECK(result["status"] == "failed");
  CHECK(result["error"]["code"] == "node_lost");
  CHECK(contains(result["error"]["message"], t.two.address));
  for (std::size_t i = 0; i < result["failures"].size(); ++i)
    CHECK_MESSAGE((result["failures"][i]["consequence"] == false) == (result["failures"][i]["code"] == "node_lost"),
                  result["failures"][i].dump());
  t.check_service(t.one.address);
}

TEST_CASE("a killed worker without allowed failures ends the run, whose result names it and the others' errors as "
          "consequences") {
  two_nodes t;
  auto driver = t.start("victim", {"--max-failures", "0"});
  auto workers = watch_all(t.here.workers());
  send_signal(t.here.worker_of_rank(2), SIGKILL);
  auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(driver.err(), "rank 2"));
  CHECK(contains(driver.err(), "killed by signal 9"));
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(t.here.workers_vanish());
  auto result = t.here.result("victim");
  CHECK(result["status"] == "failed");
  CHECK(result["state_sha256"] == "");
  auto failures = result["failures"];
  REQUIRE(failures.size() > 0);
  CHECK(failures[0]["rank"] == 2);
  CHECK(failures[0]["code"] == "worker_lost");
  CHECK(failures[0]["consequence"] == false);
  for (std::size_t i = 1; i < failures.size(); ++i) {
    CHECK_MESSAGE(failures[i]["consequence"] == true, failures[i].dump());
    CHECK(failures[i]["rank"] != 2);
  }
  t.check_service(t.one.address + "," + t.two.address);
}

TEST_CASE("a node ends on request, and its workers with it") {
  scratch_runs here;
  auto node = here.start_node();
  SUBCASE("while it does nothing") {
    for (auto signal : {SIGTERM, SIGINT}) {
      auto idle = here.start_node();
      idle.process.signal(signal);
      CHECK(idle.process.wait(std::chrono::milliseconds{10'000}) == exit_status{0, {}});
    }
  }
  SUBCASE("while a run is on it") {
    auto driver = here.start(here.charlm("ended", for_long("4", {"--nodes", node.address})));
    here.await_step(driver, "ended");
    auto workers = watch_all(here.workers());
    node.process.signal(SIGTERM);
    CHECK(node.process.wait(std::chrono::milliseconds{10'000}) == exit_status{0, {}});
    CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
    // The run has a checkpoint and could be resumed with another node.
    driver.signal(SIGTERM);
    auto status = driver.wait();
    INFO(driver.err());
    CHECK(status == exit_status{143, {}});
    CHECK(contains(driver.err(), node.address));
    auto result = here.result("ended");
    CHECK(result["failures"].empty());
    CHECK(result["latest_checkpoint"].get<std::string>() != "");
    CHECK(here.workers_vanish());
  }
}

TEST_CASE("a killed driver without nodes leaves no processes") {
  scratch_runs here;
  auto driver = here.start(here.charlm("alone", for_long("4")));
  here.await_step(driver, "alone");
  auto workers = watch_all(here.workers());
  CHECK(workers.size() == 4);
  driver.signal(SIGKILL);
  driver.wait();
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(becomes_true([&] { return here.processes().empty(); }, std::chrono::milliseconds{10'000}));
}

TEST_CASE("workers that hang in user code end with their driver") {
  scratch_runs here;
  auto driver = here.start({misbehaving_program(), "sleep", "2", here.path("runs").string(), "asleep"});
  here.await_step(driver, "asleep");
  auto workers = watch_all(here.workers());
  CHECK(workers.size() == 2);
  driver.signal(SIGKILL);
  driver.wait();
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(becomes_true([&] { return here.processes().empty(); }, std::chrono::milliseconds{10'000}));
}

TEST_CASE("two runs share a node, and the end of one does not affect the other") {
  scratch_runs here;
  auto node = here.start_node();
  auto arguments = for_long("2", {"--nodes", node.address});
  auto alone = arguments;
  alone.insert(alone.end(), {"--driver-grace", "0"});
  auto first = here.start(here.charlm("first", alone));
  auto second = here.start(here.charlm("second", arguments));
  here.await_step(first, "first");
  here.await_step(second, "second");
  CHECK(here.workers().size() == 4);
  first.signal(SIGKILL);
  first.wait();
  CHECK(becomes_true([&] { return here.workers().size() <= 2; }, std::chrono::milliseconds{10'000}));
  second.signal(SIGTERM);
  auto status = second.wait();
  INFO(second.err());
  CHECK(status == exit_status{143, {}});
  CHECK(here.result("second")["status"] == "stopped");
  CHECK(here.workers_vanish());
}
