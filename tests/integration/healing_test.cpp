#include "playground.hpp"

#include <csignal>
#include <cstdint>
#include <doctest/doctest.h>

using namespace troupe::testing;

namespace {

constexpr std::uint64_t all_steps = 3000;

/// Runs that are long enough to lose workers on the way, and their undisturbed twins.
struct trial {
  playground here;

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

  /// Kills the workers of `ranks` one after the other, while training goes on; gives the run's result.
  nlohmann::json disturbed(const std::string& name, const std::vector<int>& ranks, std::vector<std::string> more) {
    auto driver = here.start(arguments(name, std::move(more)));
    std::uint64_t step = 0;
    for (auto rank : ranks) {
      here.await_step(driver, name, step);
      ::kill(here.worker_of_rank(rank), SIGKILL);
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

TEST_CASE("killed workers cost no step and no bit, down to one survivor, on every backend") {
  trial t;
  const auto wanted = t.undisturbed();
  for (const std::string backend : {"shm", "gloo"}) {
    auto result = t.disturbed(backend, {2, 0, 3}, {"--workers", "4", "--backend", backend});
    INFO(backend << result.dump(2));
    CHECK(result["status"] == "completed");
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
    CHECK(result["steps"] == all_steps);
    // What was done to it, and nothing else.
    REQUIRE(result["failures"].size() == 3);
    for (const auto& failure : result["failures"])
      CHECK(failure["code"] == "worker_lost");
  }
}

TEST_CASE("workers on two nodes survive each other, and the loss of a node") {
  trial t;
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

TEST_CASE("a worker that is killed while checkpoints are taken costs none of them") {
  trial t;
  const auto wanted = t.undisturbed();
  auto result = t.disturbed("often", {1, 3, 0}, {"--workers", "4", "--checkpoint-every", "5"});
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}
