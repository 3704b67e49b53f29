#include "scratch_runs.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <string>
#include <thread>

using namespace troupe::testing;

TEST_CASE("no worker is evicted on an overloaded machine without failures") {
  // One minute, ten with TROUPE_LONG_TESTS. The test is about the elapsed time itself and waits for no event.
  const auto duration = std::chrono::seconds{std::getenv("TROUPE_LONG_TESTS") != nullptr ? 600 : 60};
  scratch_runs here;
  auto driver = here.start(here.charlm("crowd", {"--workers", "16", "--shards", "16", "--hidden", "128", "--embedding",
                                                 "32", "--batch", "512", "--steps", "100000000"}));
  here.await_step(driver, "crowd");
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end && driver.running())
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  driver.signal(SIGTERM);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{143, {}});
  auto result = here.result("crowd");
  CHECK(result["failures"].empty());
  CHECK(result["generations"].empty());
}
