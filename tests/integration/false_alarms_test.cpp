#include "scratch_runs.hpp"

#include <load.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <thread>

using namespace troupe::testing;

namespace {

/// How long many processes may take to start and train on a machine that others use, too.
constexpr auto crowd_limit = 5 * hang_limit;

} // namespace

TEST_CASE("no worker is evicted on an overloaded machine without failures") {
  // The test is about the elapsed time itself and waits for no event.
  const auto* seconds = std::getenv("TROUPE_LONG_TESTS");
  const auto duration = std::chrono::seconds{seconds != nullptr ? std::max(std::atoi(seconds), 60) : 30};
  auto beside = std::optional<troupe::chaos::cpu_storm>{};
  if (seconds != nullptr)
    beside.emplace(8);
  const auto workers = std::string{seconds != nullptr ? "48" : "16"};
  scratch_runs here;
  auto driver = here.start(here.charlm("crowd", {"--workers", workers, "--shards", workers, "--hidden", "128",
                                                 "--embedding", "32", "--batch", "512", "--steps", "100000000"}));
  here.await_step(driver, "crowd");
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end && driver.running())
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  driver.signal(SIGTERM);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{143, {}});
  auto result = here.result("crowd");
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].empty());
  CHECK(result["generations"].empty());
}

TEST_CASE("many more workers than processors train, with the bits of one") {
  // With sanitizers a process takes ten times the memory.
  const auto workers = std::string{TROUPE_TEST_PATIENCE > 1 ? "32" : "128"};
  scratch_runs here;
  auto train = [&](const std::string& name, const std::string& number) {
    auto driver = here.start(here.charlm(
        name, {"--workers", number, "--shards", "128", "--batch", "256", "--steps", "20", "--sample", "0"}));
    auto status = driver.wait(crowd_limit);
    INFO(driver.err());
    REQUIRE(status == exit_status{0, {}});
    return here.result(name);
  };
  const auto one = train("one", "1");
  const auto all = train("all", workers);
  CHECK(all["state_sha256"] == one["state_sha256"]);
  CHECK(all["steps"] == 20);
  CHECK(all["restarts"] == 0);
  CHECK(all["failures"].empty());
  CHECK(all["generations"].empty());
}
