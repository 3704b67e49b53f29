#include "scratch_runs.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Several drivers that share nodes.

using namespace troupe::testing;

namespace {

/// Two nodes with one CPU each, and a run that has leased both and trains.
class busy_nodes {
 public:
  scratch_runs here;

  busy_nodes() {
    nodes_.push_back(here.start_node({"--cpus", "1", "--resource", "licence=1", "--label", "zone=a"}));
    nodes_.push_back(here.start_node({"--cpus", "1", "--label", "zone=b"}));
    holder.emplace(here.start(leasing("holder", {"--steps", "1000000", "--driver-grace", "1"})));
    here.await_step(*holder, "holder");
  }

  /// A run that leases a CPU for each of two workers.
  [[nodiscard]] std::vector<std::string> leasing(const std::string& name, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--nodes", nodes_[0].address + "," + nodes_[1].address});
    if (std::ranges::find(more, "--cpus-per-worker") == more.end())
      more.insert(more.end(), {"--cpus-per-worker", "1"});
    if (std::ranges::find(more, "--workers") == more.end())
      more.insert(more.end(), {"--workers", "2"});
    return here.charlm(name, std::move(more));
  }

  std::optional<child_process> holder;

 private:
  std::vector<running_node> nodes_;
};

} // namespace

TEST_CASE("a run whose resources others have fails at once, and says who has them") {
  busy_nodes all;
  const auto ran = all.here.run(all.leasing("second"));
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "run holder has 1 CPU"));
  CHECK(contains(ran.err, "--wait"));
  CHECK_FALSE(std::filesystem::exists(all.here.run_directory("second")));
  CHECK(all.holder->running());
}

TEST_CASE("what the nodes could never give fails at once, however long the run may wait") {
  busy_nodes all;
  const auto more = all.here.run(all.leasing("larger", {"--workers", "3", "--wait", "600"}));
  INFO(more.err);
  CHECK(more.status == exit_status{1, {}});
  CHECK(contains(more.err, "3 workers with 1 CPU each need 3 CPUs"));
  const auto elsewhere = all.here.run(all.leasing("elsewhere", {"--node-label", "zone=c", "--wait", "600"}));
  INFO(elsewhere.err);
  CHECK(elsewhere.status == exit_status{1, {}});
  CHECK(contains(elsewhere.err, "no node has the labels zone=c"));
}

TEST_CASE("a run that waits begins when the other one ends, and has the same result") {
  busy_nodes all;
  auto second = all.here.start(all.leasing("second", {"--wait", "600"}));
  all.here.await(second, [&] { return contains(second.err(), "run holder has 1 CPU"); });
  all.holder->signal(SIGINT);
  CHECK(all.holder->wait() == exit_status{128 + SIGINT, {}});
  CHECK(second.wait() == exit_status{0, {}});
  const auto alone = all.here.run(all.here.charlm("alone", {"--workers", "1"}));
  REQUIRE(alone.status == exit_status{0, {}});
  CHECK(all.here.result("second")["state_sha256"] == all.here.result("alone")["state_sha256"]);
}

TEST_CASE("a run that waits can be stopped, and leaves nothing behind") {
  busy_nodes all;
  auto second = all.here.start(all.leasing("second", {"--wait", "600"}));
  all.here.await(second, [&] { return contains(second.err(), "waits: "); });
  second.signal(SIGINT);
  second.wait();
  CHECK(all.holder->running());
  // The other still has its lease, and its place in the queue is free.
  all.holder->signal(SIGINT);
  all.holder->wait();
  CHECK(all.here.run(all.leasing("third")).status == exit_status{0, {}});
}

TEST_CASE("a run that asks for other resources, or reserves none, runs beside the one that has the CPUs") {
  busy_nodes all;
  const auto beside = all.here.run(all.leasing("beside", {"--cpus-per-worker", "0"}));
  INFO(beside.err);
  CHECK(beside.status == exit_status{0, {}});
  const auto licence = all.here.run(all.leasing("licence", {"--cpus-per-worker", "0", "--resource-per-worker",
                                                            "licence=1", "--workers", "1", "--node-label", "zone=a"}));
  INFO(licence.err);
  CHECK(licence.status == exit_status{0, {}});
}

TEST_CASE("the leases of a driver that is killed are free once its workers have ended") {
  busy_nodes all;
  auto second = all.here.start(all.leasing("second", {"--wait", "600"}));
  all.here.await(second, [&] { return contains(second.err(), "run holder has 1 CPU"); });
  all.holder->signal(SIGKILL);
  CHECK(second.wait() == exit_status{0, {}});
}

TEST_CASE("wrong words for resources and labels are reported by the option's name") {
  scratch_runs here;
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
           {"--resource-per-worker", "licence"}, {"--resource-per-worker", "licence=0"}, {"--node-label", "=a"}}) {
    const auto ran = here.run(here.charlm("words", {option, value}));
    INFO(ran.err);
    CHECK(ran.status == exit_status{2, {}});
    CHECK(contains(ran.err, option));
  }
}
