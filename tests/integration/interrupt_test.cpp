#include "scratch_runs.hpp"

#include <doctest/doctest.h>

using namespace troupe::testing;

TEST_CASE("one Ctrl-C finishes the step, takes a checkpoint and ends with 130") {
  scratch_runs here;
  auto driver = here.start(here.charlm("run", {"--steps", "100000000", "--workers", "3"}));
  here.await_step(driver, "run");
  auto workers = watch_all(here.workers());
  driver.signal_group(SIGINT);
  auto status = driver.wait();
  INFO(driver.out() << driver.err());
  CHECK(status == exit_status{130, {}});
  auto result = here.result("run");
  CHECK(result["status"] == "stopped");
  CHECK(result["steps"].get<int>() > 0);
  auto checkpoint = std::filesystem::path{result["latest_checkpoint"].get<std::string>()};
  CHECK(std::filesystem::exists(checkpoint / "manifest.snapshot"));
  CHECK(stored_state(checkpoint) == result["state_sha256"]);
  auto opened = troupe::serialization::checkpoint::open(checkpoint);
  REQUIRE(opened.has_value());
  CHECK(opened->content().step.value == result["steps"].get<std::uint64_t>());
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(here.processes().empty());
}

TEST_CASE("a second Ctrl-C ends a run whose workers hang") {
  scratch_runs here;
  auto node = here.start_node();
  auto nodes = std::vector<std::string>{};
  SUBCASE("on the driver's machine") {}
  SUBCASE("on a node") {
    nodes.push_back(node.address);
  }
  auto argv = std::vector<std::string>{misbehaving_program(), "sleep", "2", here.path("runs").string(), "run"};
  argv.insert(argv.end(), nodes.begin(), nodes.end());
  auto driver = here.start(argv);
  // Rank 1 hangs before the sum of step 3: with step 2 done, no barrier is left that could carry the stop.
  here.await_step(driver, "run", 1);
  auto workers = watch_all(here.workers());
  CHECK(workers.size() == 2);
  driver.signal_group(SIGINT);
  CHECK(!process_watch{driver.pid()}.ends(std::chrono::milliseconds{200}));
  driver.signal_group(SIGINT);
  auto status = driver.wait(std::chrono::milliseconds{10'000});
  INFO(driver.out() << driver.err());
  CHECK(status == exit_status{130, {}});
  CHECK(here.result("run")["status"] == "stopped");
  CHECK(all_end(workers, std::chrono::milliseconds{10'000}));
  CHECK(here.workers_vanish());
}

TEST_CASE("a driver that is interrupted before its workers have joined ends without leaving processes") {
  scratch_runs here;
  auto driver = here.start(here.charlm("run", {"--steps", "100000000", "--workers", "4"}));
  here.await(driver, [&] { return !here.workers().empty(); });
  driver.signal_group(SIGINT);
  auto status = driver.wait(std::chrono::milliseconds{20'000});
  INFO(driver.out() << driver.err());
  CHECK(status == exit_status{130, {}});
  CHECK(here.result("run")["status"] == "stopped");
  CHECK(becomes_true([&] { return here.processes().empty(); }, std::chrono::milliseconds{10'000}));
}
