#include "breakable_link.hpp"
#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <thread>

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const auto endless = std::string{"1000000"};

/// The control plane between a driver and its nodes goes over links that can be broken.
struct test_run {
  scratch_runs here;
  std::vector<running_node> nodes;
  std::vector<std::unique_ptr<breakable_link>> links;

  explicit test_run(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      nodes.push_back(here.start_node());
      links.push_back(std::make_unique<breakable_link>(nodes.back().address));
    }
  }

  [[nodiscard]] std::string addresses() const {
    std::string result;
    for (const auto& each : links)
      result += (result.empty() ? "" : ",") + each->address();
    return result;
  }

  [[nodiscard]] std::vector<std::string> arguments(const std::string& name, std::vector<std::string> more = {}) const {
    more.insert(more.end(),
                {"--workers", std::to_string(2 * nodes.size()), "--nodes", addresses(), "--steps", endless});
    return here.charlm(name, std::move(more));
  }

  void reset_all() {
    for (auto& each : links)
      each->reset();
  }
};

/// The run has lost nothing, and nobody was replaced.
void check_untouched(scratch_runs& here, const nlohmann::json& result) {
  INFO(result.dump(2));
  CHECK(result["status"] == "stopped");
  CHECK(result["state_sha256"] == here.state_after(result["steps"]));
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].empty());
  CHECK(result["generations"].empty());
}

} // namespace

TEST_CASE("connections that are reset again and again cost no step and no worker") {
  test_run t{1};
  auto driver = t.here.start(t.arguments("reset", {"--checkpoint-every", "20"}));
  t.here.await_step(driver, "reset");
  const auto connections = [&t] {
    auto result = 0;
    const auto log = t.nodes[0].process.err();
    for (auto at = log.find("is connected again"); at != std::string::npos; at = log.find("is connected again", at + 1))
      ++result;
    return result;
  };
  for (auto i = 1; i <= 3; ++i) {
    // Also while the connection is made again.
    t.reset_all();
    t.reset_all();
    t.here.await(driver, [&] { return connections() >= i; });
  }
  const auto result = t.here.stop(driver, "reset");
  check_untouched(t.here, result);
  // Each step's metrics are there once.
  const auto rows = read_lines(t.here.run_directory("reset") / "metrics.jsonl");
  std::map<std::pair<int, int>, int> seen;
  for (const auto& row : rows)
    ++seen[{row["rank"].get<int>(), row["step"].get<int>()}];
  CHECK(std::ranges::all_of(seen, [](const auto& x) { return x.second == 1; }));
  CHECK(seen.size() >= result["steps"].get<std::size_t>());
  CHECK(t.here.workers_vanish());
}

TEST_CASE("a run whose only node cannot be connected to for seconds goes on with the same workers") {
  test_run t{1};
  auto driver = t.here.start(t.arguments("refused"));
  t.here.await_step(driver, "refused");
  t.links[0]->refuse();
  t.reset_all();
  t.here.await(driver, [&] { return contains(driver.err(), "so the run waits for it"); });
  std::this_thread::sleep_for(1s);
  t.links[0]->accept();
  const auto result = t.here.stop(driver, "refused");
  check_untouched(t.here, result);
  CHECK(contains(t.nodes[0].process.err(), "is connected again after"));
}

TEST_CASE("Ctrl-C says for which nodes it waits, and the second one ends the run, and says where it goes on") {
  test_run t{1};
  auto driver = t.here.start(t.arguments("stopped", {"--checkpoint-every", "20"}));
  t.here.await_step(driver, "stopped", 40);
  t.here.await(driver, [&] { return !t.here.checkpoints("stopped").empty(); });
  t.here.await_step(driver, "stopped", t.here.last_step("stopped") + 20);
  t.links[0]->refuse();
  t.reset_all();
  t.here.await(driver, [&] { return contains(driver.err(), "so the run waits for it"); });
  driver.signal(SIGINT);
  t.here.await(driver, [&] {
    return contains(driver.err(),
                    "stopping after this step; waiting for node " + t.links[0]->address() + ", silent for");
  });
  driver.signal(SIGINT);
  const auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{130, {}});
  const auto result = t.here.result("stopped");
  CHECK(result["status"] == "stopped");
  CHECK(contains(driver.err(), "stopped: the same run goes on from " + t.here.run_directory("stopped").string()));
}

TEST_CASE("of two nodes, the one that cannot be connected to is given up, and takes workers again later") {
  test_run t{2};
  auto driver = t.here.start(t.arguments("one", {"--placement", "spread"}));
  t.here.await_step(driver, "one");
  t.links[1]->refuse();
  t.links[1]->reset();
  t.here.await(driver, [&] { return contains(driver.err(), "the others go on"); });
  t.links[1]->accept();
  t.here.await(driver, [&] { return contains(driver.err(), "it takes new ones"); });
  t.here.await_group(driver, "one", 4);
  const auto result = t.here.stop(driver, "one");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == t.here.state_after(result["steps"]));
  CHECK(result["restarts"] == 0);
  CHECK(std::ranges::any_of(result["generations"], [](const auto& x) { return x["workers"] == 4; }));
  CHECK(t.here.workers_vanish());
}

TEST_CASE("a node that was started anew has no workers of the run, which restarts from its checkpoint") {
  test_run t{1};
  auto driver = t.here.start(t.arguments("anew", {"--checkpoint-every", "50"}));
  t.here.await_step(driver, "anew", 120);
  const auto address = t.nodes[0].address;
  t.nodes[0].process.signal(SIGKILL);
  t.nodes[0].process.wait();
  CHECK(t.here.workers_vanish());
  const auto another = t.here.start_node({"--listen", address});
  t.here.await(driver, [&] { return contains(driver.err(), "was started anew"); });
  t.here.await_group(driver, "anew", 2);
  const auto result = t.here.stop(driver, "anew");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == t.here.state_after(result["steps"]));
  CHECK(result["restarts"] == 1);
  CHECK(contains(driver.err(), "was started anew"));
}

TEST_CASE("a driver that is stopped for seconds finds its run as it was") {
  test_run t{2};
  auto driver = t.here.start(t.arguments("stopped", {"--placement", "spread"}));
  t.here.await_step(driver, "stopped");
  driver.signal(SIGSTOP);
  std::this_thread::sleep_for(3s);
  driver.signal(SIGCONT);
  const auto result = t.here.stop(driver, "stopped");
  check_untouched(t.here, result);
}

TEST_CASE("when all nodes are stopped for seconds, the run goes on with the same workers") {
  test_run t{2};
  auto driver = t.here.start(t.arguments("nodes", {"--placement", "spread"}));
  t.here.await_step(driver, "nodes");
  for (auto& each : t.nodes)
    each.process.signal(SIGSTOP);
  std::this_thread::sleep_for(3s);
  for (auto& each : t.nodes)
    each.process.signal(SIGCONT);
  const auto result = t.here.stop(driver, "nodes");
  check_untouched(t.here, result);
}

TEST_CASE("a connection that is lost while everybody waits for the driver is no answer") {
  test_run t{1};
  // A joiner that does not come keeps nobody waiting; a member that is stopped keeps all.
  auto driver = t.here.start(t.arguments("waiting"));
  t.here.await_step(driver, "waiting");
  const auto stopped = t.here.worker_of_rank(0);
  const auto killed = t.here.worker_of_rank(1);
  send_signal(stopped, SIGSTOP);
  send_signal(killed, SIGKILL);
  std::this_thread::sleep_for(100ms);
  t.reset_all();
  std::this_thread::sleep_for(400ms);
  send_signal(stopped, SIGCONT);
  t.here.await_failures(driver, "waiting", 1);
  const auto result = t.here.stop(driver, "waiting");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == t.here.state_after(result["steps"]));
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].size() == 1);
}

TEST_CASE("a node that was taken for dead, and is not, ends its workers and takes new ones") {
  test_run t{2};
  auto driver = t.here.start(t.arguments("alive", {"--placement", "spread"}));
  t.here.await_step(driver, "alive");
  const auto before = t.here.workers();
  for (auto& each : t.links)
    each->refuse();
  t.reset_all();
  t.here.await(driver, [&] { return contains(driver.err(), "nobody listens at"); });
  for (auto& each : t.links)
    each->accept();
  t.here.await(driver, [&] {
    return std::ranges::none_of(t.here.workers(), [&](pid_t x) { return std::ranges::count(before, x) > 0; });
  });
  const auto result = t.here.stop(driver, "alive");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == t.here.state_after(result["steps"]));
  CHECK(t.here.workers_vanish());
}
