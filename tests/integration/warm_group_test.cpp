#include "scratch_runs.hpp"

#include <troupe/troupe.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

// A trainer that has been started keeps the processes of its workers from one run to the next.

using namespace troupe::testing;

namespace {

/// A trainer in this process, whose workers are processes of charlm.
class warm_group {
 public:
  scratch_runs here;

  warm_group() { ::setenv("TROUPE_KEYS", here.keys().c_str(), 1); }
  ~warm_group() { ::unsetenv("TROUPE_KEYS"); }

  [[nodiscard]] troupe::trainer_config describe(const std::string& name, std::uint64_t seed = 1) const {
    troupe::trainer_config result;
    result.run.name = name;
    result.run.storage_path = here.path("runs");
    result.run.seed = seed;
    result.run.steps = 30;
    result.scaling.num_workers = 2;
    result.config = {{"embedding", 16}, {"hidden", 32}, {"batch", 64}};
    result.options = {{"text", here.text().string()}, {"evaluate_every", 1'000'000}};
    return result;
  }

  [[nodiscard]] troupe::app make_app() const {
    static auto name = std::string{"warm_group_test"};
    static char* arguments[] = {name.data(), nullptr};
    return troupe::app{1, arguments, troupe::worker_program{charlm_program()}};
  }

  /// The state of a run in processes of its own.
  [[nodiscard]] std::string state_alone(std::uint64_t seed = 1) {
    auto alone = troupe::trainer{app, train, describe("alone-" + std::to_string(++alone_), seed)};
    return completed(alone.fit());
  }

  static std::string completed(const troupe::run_result& result) {
    INFO(result.reason.message);
    REQUIRE(result.status == troupe::run_status::completed);
    return result.state_sha256;
  }

  /// Kills one of the two processes that wait: the next run has another in its place, keeps the rest, and ends in
  /// `state`.
  void replaces_what_dies(troupe::trainer& group, const std::string& state) const {
    const auto before = here.workers();
    REQUIRE(before.size() == 2);
    send_signal(before[0], SIGKILL);
    CHECK(completed(group.run(train)) == state);
    const auto after = here.workers();
    CHECK(after.size() == 2);
    CHECK(std::ranges::count(after, before[0]) == 0);
    CHECK(std::ranges::count(after, before[1]) == 1);
  }

  troupe::app app = make_app();
  troupe::function train = app.find_function("train");

 private:
  int alone_ = 0;
};

} // namespace

TEST_CASE_FIXTURE(warm_group, "the runs of a group have the same processes, and the bits of runs that have their own") {
  auto group = troupe::trainer{app, train, describe("run")};
  REQUIRE(group.start());
  REQUIRE(group.start());
  const auto first = group.run(train);
  CHECK(completed(first) == state_alone());
  CHECK(first.name == "run");
  const auto processes = here.workers();
  CHECK(processes.size() == 2);

  const auto second = group.run(train, describe("run", 2));
  CHECK(completed(second) == state_alone(2));
  CHECK(second.name == "run-2");
  CHECK(here.workers() == processes);

  // Also with other settings, and with another number of workers.
  auto single = describe("run");
  single.scaling.num_workers = 1;
  CHECK(completed(group.run(train, single)) == first.state_sha256);
  CHECK(here.workers() == processes);
  auto three = describe("run");
  three.scaling.num_workers = 3;
  CHECK(completed(group.run(train, three)) == first.state_sha256);
  CHECK(here.workers().size() == 3);

  group.shutdown();
  CHECK(here.workers_vanish());
  CHECK(group.run(train).reason.code == troupe::errc::invalid_argument);
  REQUIRE(group.start());
  CHECK(completed(group.fit()) == first.state_sha256);
}

TEST_CASE_FIXTURE(warm_group, "a process that dies between two runs is replaced in the next") {
  auto group = troupe::trainer{app, train, describe("run")};
  REQUIRE(group.start());
  const auto state = completed(group.run(train));
  replaces_what_dies(group, state);
}

TEST_CASE_FIXTURE(warm_group, "a worker that is killed in a run of a group is replaced, and the next run has what is "
                              "left") {
  auto group = troupe::trainer{app, train, describe("run")};
  REQUIRE(group.start());
  completed(group.run(train));
  const auto before = here.workers();
  auto longer = describe("run");
  longer.run.steps = 1'500;
  auto killed = false;
  troupe::run_callbacks callbacks;
  callbacks.progress = [&](const troupe::run_progress& x) {
    if (x.step > 100 && !killed) {
      killed = true;
      send_signal(before[1], SIGKILL);
    }
  };
  group.set_callbacks(callbacks);
  const auto disturbed = group.run(train, longer);
  CHECK(killed);
  CHECK(disturbed.failures.size() == 1);
  group.set_callbacks({});
  longer.run.name = "undisturbed";
  CHECK(completed(disturbed) == completed(group.run(train, longer)));
  CHECK(std::ranges::count(here.workers(), before[0]) == 1);
}

TEST_CASE_FIXTURE(warm_group, "a run that fails leaves the group as it is for the next") {
  auto group = troupe::trainer{app, train, describe("run")};
  REQUIRE(group.start());
  auto wrong = describe("run");
  wrong.options["text"] = here.path("nowhere").string();
  const auto failed = group.run(train, wrong);
  CHECK(failed.status == troupe::run_status::failed);
  CHECK(contains(failed.reason.message, "nowhere"));
  CHECK(completed(group.run(train)) == state_alone());
}

TEST_CASE_FIXTURE(warm_group, "a checkpoint that is asked for is answered by its directory, or why there is none") {
  auto group = troupe::trainer{app, train, describe("run")};
  CHECK(group.save_checkpoint().get().error().code == troupe::errc::invalid_argument);
  auto longer = describe("run");
  longer.run.steps = 1'000'000;
  REQUIRE(group.start());
  auto asked = std::optional<std::shared_future<troupe::expected<std::filesystem::path>>>{};
  auto since = std::uint64_t{0};
  troupe::run_callbacks callbacks;
  callbacks.progress = [&](const troupe::run_progress& x) {
    if (x.step > 50 && !asked) {
      since = x.step;
      asked = group.save_checkpoint();
    }
  };
  callbacks.saved = [&](const troupe::checkpoint_saved&) { group.stop(); };
  group.set_callbacks(callbacks);
  const auto result = group.run(train, longer);
  CHECK(result.status == troupe::run_status::stopped);
  REQUIRE(asked);
  const auto saved = asked->get();
  REQUIRE(saved);
  const auto opened = troupe::serialization::checkpoint::open(*saved);
  REQUIRE(opened);
  CHECK(opened->content().step.value > since);
}

TEST_CASE_FIXTURE(warm_group, "a process that is used again and again keeps nothing of the runs before") {
  auto group = troupe::trainer{app, train, describe("run")};
  REQUIRE(group.start());
  const auto counts = [&] {
    std::vector<std::ptrdiff_t> result;
    for (const auto pid : here.workers())
      for (const auto* kind : {"fd", "task"})
        result.push_back(
            std::ranges::distance(std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/" + kind}));
    return result;
  };
  std::vector<std::ptrdiff_t> before;
  for (auto run = 0; run < 10; ++run) {
    completed(group.run(train));
    if (run == 1)
      before = counts();
  }
  CHECK(before.size() == 4);
  CHECK(becomes_true([&] { return counts() == before; }));
}

TEST_CASE_FIXTURE(warm_group, "on caf-nodes, too, the runs of a group have the same processes, which end with it") {
  const auto first = here.start_node();
  const auto second = here.start_node();
  auto config = describe("run");
  config.cluster.nodes = {first.address, second.address};
  config.scaling.placement = troupe::placement_strategy::spread;
  {
    auto group = troupe::trainer{app, train, config};
    REQUIRE(group.start());
    const auto state = completed(group.run(train));
    CHECK(state == state_alone());
    const auto before = here.workers();
    REQUIRE(before.size() == 2);
    auto other = config;
    other.run.seed = 2;
    CHECK(completed(group.run(train, other)) == state_alone(2));
    CHECK(here.workers() == before);
    replaces_what_dies(group, state);
    group.shutdown();
    CHECK(here.workers_vanish());
    REQUIRE(group.start());
    auto again = config;
    again.run.name = "again";
    CHECK(completed(group.run(train, again)) == state);
  }
  CHECK(here.workers_vanish());
}

TEST_CASE_FIXTURE(warm_group,
                  "processes that wait on a caf-node end for another driver's run, and their driver is told") {
  const auto node = here.start_node();
  auto config = describe("run");
  config.cluster.nodes = {node.address};
  auto group = troupe::trainer{app, train, config};
  std::mutex mutex;
  std::string told;
  troupe::run_callbacks callbacks;
  callbacks.notice = [&](const troupe::run_notice& x) {
    const auto lock = std::lock_guard{mutex};
    told += x.text + "\n";
  };
  group.set_callbacks(callbacks);
  REQUIRE(group.start());
  const auto state = completed(group.run(train));
  const auto before = here.workers();
  REQUIRE(before.size() == 2);
  const auto ran = here.run(here.charlm("other", {"--workers", "1", "--nodes", node.address}));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  CHECK(here.workers_vanish());
  CHECK(becomes_true([&] {
    const auto lock = std::lock_guard{mutex};
    return contains(told, "2 processes that waited on node") && contains(told, "run other starts workers there");
  }));
  CHECK(completed(group.run(train)) == state);
  CHECK(here.workers().size() == 2);
}
