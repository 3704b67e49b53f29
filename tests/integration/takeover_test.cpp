#include "memory_file_system.hpp"
#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <tuple>

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// More steps than any run here makes: it is stopped once what it is for has happened.
const auto endless = std::string{"100000000"};

/// Nodes, and drivers of the same run one after the other.
struct test_run {
  scratch_runs here;
  std::vector<running_node> nodes;

  explicit test_run(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      nodes.push_back(here.start_node());
  }

  [[nodiscard]] std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    std::string addresses;
    for (const auto& each : nodes)
      addresses += (addresses.empty() ? "" : ",") + each.address;
    more.insert(more.end(),
                {"--workers", std::to_string(2 * nodes.size()), "--nodes", addresses, "--placement", "spread"});
    if (std::ranges::find(more, "--steps") == more.end())
      more.insert(more.end(), {"--steps", endless});
    return here.charlm("run", std::move(more));
  }

  /// A driver that is killed once the run is after this step.
  void begin(std::uint64_t after, std::vector<std::string> more = {}) {
    auto driver = here.start(arguments(std::move(more)));
    here.await_step(driver, "run", after);
    kill(driver);
  }

  /// A driver that is killed once the run has a checkpoint.
  void begin_until_checkpoint() {
    auto driver = here.start(arguments({"--checkpoint-every", "50"}));
    here.await(driver, [this] { return !here.checkpoints("run").empty(); });
    kill(driver);
  }

  static void kill(child_process& driver) {
    driver.signal(SIGKILL);
    driver.wait();
  }

  /// Lets the run of a driver go on for a while and stops it. Returns its result.
  [[nodiscard]] nlohmann::json finish(child_process& driver) {
    auto result = here.stop(driver, "run");
    CHECK(result["status"] == "stopped");
    check_end();
    return result;
  }

  /// As `finish`, of a run that must have the bits of an undisturbed one.
  [[nodiscard]] nlohmann::json finish_undisturbed(child_process& driver) {
    auto result = finish(driver);
    CHECK(result["state_sha256"] == here.state_after(result["steps"]));
    CHECK(result["restarts"] == 0);
    return result;
  }

  void check_end() {
    CHECK(here.workers_vanish());
    for (const auto* journal : {".journal-0", ".journal-1"})
      CHECK_FALSE(std::filesystem::exists(here.run_directory("run") / journal));
  }

  /// How often a step's row of each rank is in this file, at most and at least, for the steps up to `last`.
  [[nodiscard]] std::pair<int, int> copies_of_rows(const std::string& file, int last) const {
    std::map<std::pair<int, int>, int> seen;
    for (const auto& row : read_lines(here.run_directory("run") / file))
      ++seen[{row["rank"].get<int>(), row["step"].get<int>()}];
    auto least = 1'000'000;
    auto most = 0;
    for (auto rank = 0; rank < 2; ++rank)
      for (auto step = 1; step <= last; ++step) {
        const auto count = seen[{rank, step}];
        least = std::min(least, count);
        most = std::max(most, count);
      }
    return {least, most};
  }
};

} // namespace

TEST_CASE("a driver that is started again goes on with the workers of the one that was killed") {
  test_run t{1};
  const std::vector<std::string> steps{"--steps", "4000"};
  t.begin(100, steps);
  const auto workers = t.here.workers();
  std::this_thread::sleep_for(1s);
  CHECK(t.here.workers() == workers);
  for (const auto* journal : {".journal-0", ".journal-1"})
    if (const auto path = t.here.run_directory("run") / journal; std::filesystem::exists(path))
      CHECK(std::filesystem::status(path).permissions() ==
            (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  auto driver = t.here.start(t.arguments(steps));
  t.here.await(driver, [&] { return contains(driver.err(), "the driver was started again"); });
  CHECK(t.here.workers() == workers);
  CHECK(driver.wait() == exit_status{0, {}});
  t.check_end();
  const auto result = t.here.result("run");
  INFO(result.dump(2));
  CHECK(result["status"] == "completed");
  CHECK(result["state_sha256"] == t.here.state_after(4000));
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].empty());
  CHECK(result["resumed_from_step"] == 0);
  CHECK(result["workers"].size() == 2);
  // Each step's metrics are there once.
  CHECK(t.copies_of_rows("metrics.jsonl", 4000) == std::pair{1, 1});
}

TEST_CASE("workers that were taken over stream their checkpoints to the new driver, also the only one at the end") {
  test_run t{1};
  const std::vector<std::string> steps{"--steps", "2000", "--checkpoint-every", "0", "--checkpoint-sync", "stream"};
  t.begin(100, steps);
  auto driver = t.here.start(t.arguments(steps));
  CHECK(driver.wait() == exit_status{0, {}});
  INFO(driver.err());
  t.check_end();
  const auto result = t.here.result("run");
  CHECK(result["restarts"] == 0);
  CHECK(result["latest_checkpoint"].get<std::string>().ends_with("step-00002000"));
}

#ifdef TROUPE_WITH_NO_LOCKS
TEST_CASE("without locks a later driver on another host has the run, and the earlier one leaves it alone") {
  test_run t{1};
  const auto on_host = [](const std::string& name) {
    return std::map<std::string, std::string>{{"LD_PRELOAD", built("lib/libno_locks.so")}, {"TROUPE_TEST_HOST", name}};
  };
  const auto lock = [&] { return read_file(t.here.run_directory("run") / ".lock"); };
  auto earlier = t.here.start(t.arguments(), on_host("host-a"));
  t.here.await_step(earlier, "run", 100);
  const auto workers = t.here.workers();
  CHECK(lock() == std::to_string(earlier.pid()) + " host-a\n");
  // On the same host it is seen to live.
  const auto refused = t.here.run(t.arguments(), on_host("host-a"));
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "is in use by the driver with process id " + std::to_string(earlier.pid())));
  CHECK(earlier.running());

  auto later = t.here.start(t.arguments(), on_host("host-b"));
  t.here.await(later, [&] { return contains(later.err(), "the driver was started again"); });
  CHECK(earlier.wait() == exit_status{1, {}});
  INFO(earlier.err());
  CHECK(contains(earlier.err(), "another driver has taken the run over, and this one leaves it alone"));
  CHECK(lock() == std::to_string(later.pid()) + " host-b\n");
  CHECK(t.here.workers() == workers);
  std::ignore = t.finish_undisturbed(later);
}
#endif

TEST_CASE("drivers are killed again and again, and workers too, and no step is lost") {
  test_run t{2};
  t.begin(50, {"--checkpoint-every", "50"});
  for (auto i = 0; i < 4; ++i) {
    // While nobody is there to notice.
    const auto workers = t.here.workers();
    REQUIRE(workers.size() > 1);
    if (i % 2 == 0)
      send_signal(workers[static_cast<std::size_t>(i) % workers.size()], SIGKILL);
    auto driver = t.here.start(t.arguments({"--checkpoint-every", "50"}));
    t.here.await(driver, [&] { return contains(driver.err(), "the driver was started again"); });
    std::this_thread::sleep_for(i * 150ms);
    test_run::kill(driver);
  }
  auto driver = t.here.start(t.arguments({"--checkpoint-every", "50"}));
  const auto result = t.finish_undisturbed(driver);
  INFO(result.dump(2));
  INFO(driver.err());
  CHECK(result["resumed_from_step"] == 0);
  // Also of those that ended while nobody was there.
  for (const auto& failure : result["failures"])
    CHECK_MESSAGE(failure["pid"] > 0, failure.dump());
  // The result is that of all drivers: the two workers that were killed, generations, and who was there. A driver may
  // be killed before the journal has its last generation.
  CHECK(std::ranges::count_if(result["failures"], [](const auto& x) { return x["code"] == "worker_lost"; }) == 2);
  CHECK(result["generations"].size() > 1);
  for (std::size_t worker = 0; worker < 4; ++worker)
    CHECK(result["workers"][worker]["worker"] == worker);
}

TEST_CASE("a node that ends while the run has no driver costs no step, because others have the state") {
  test_run t{2};
  t.begin(100);
  t.nodes[1].process.signal(SIGKILL);
  t.nodes[1].process.wait();
  auto driver = t.here.start(t.arguments());
  const auto result = t.finish_undisturbed(driver);
  INFO(driver.err());
  CHECK(result["failures"].size() == 2);
}

TEST_CASE("workers go on although all checkpoints of their run are damaged") {
  test_run t{1};
  t.begin_until_checkpoint();
  for (const auto& checkpoint : t.here.checkpoints("run"))
    for (const auto& each : std::filesystem::recursive_directory_iterator{checkpoint})
      if (each.is_regular_file())
        std::filesystem::resize_file(each.path(), 1);
  auto driver = t.here.start(t.arguments());
  t.here.await(driver, [&] { return contains(driver.err(), "the driver was started again"); });
  CHECK(contains(driver.err(), "a restart would fail"));
  std::ignore = t.finish_undisturbed(driver);
}

TEST_CASE("a disk that is full when a run is taken over costs no worker and no step") {
  test_run t{1};
  memory_file_system files{t.here.path("runs"), "size=16m"};
  if (!files.mounted()) {
    std::puts("SKIP: no right to mount a file system here (full disk)");
    return;
  }
  t.begin(100);
  const auto workers = t.here.workers();
  const auto filler = t.here.path("runs") / "filler";
  {
    auto out = std::ofstream{filler, std::ios::binary};
    for (const auto block = std::string(4096, 'x'); out.write(block.data(), 4096).flush();)
      continue;
  }
  auto driver = t.here.start(t.arguments());
  t.here.await(driver, [&] { return contains(driver.err(), "the driver was started again"); });
  CHECK(t.here.workers() == workers);
  std::filesystem::remove(filler);
  std::ignore = t.finish_undisturbed(driver);
}

TEST_CASE("a run whose workers have ended meanwhile goes on from its latest checkpoint") {
  test_run t{1};
  t.begin_until_checkpoint();
  for (auto worker : t.here.workers())
    send_signal(worker, SIGKILL);
  // Only then does the node not offer them to the next driver.
  REQUIRE(becomes_true([&] {
    const auto log = t.nodes.front().process.err();
    return contains(log, "worker 0 of run run ended") && contains(log, "worker 1 of run run ended");
  }));
  auto driver = t.here.start(t.arguments({"--checkpoint-every", "50"}));
  const auto result = t.finish_undisturbed(driver);
  CHECK(result["resumed_from_step"] >= 50);
}

TEST_CASE("workers of another configuration are not taken over, and end") {
  test_run t{1};
  t.begin(100);
  const auto workers = watch_all(t.here.workers());
  auto driver = t.here.start(t.arguments({"--seed", "99"}));
  t.here.await(driver, [&] { return contains(driver.err(), "seed: 99 now"); });
  CHECK(all_end(workers, 10'000ms));
  std::ignore = t.finish(driver);
}

TEST_CASE("a mended program that is allowed goes on from the checkpoint, and not with the workers") {
  test_run t{1};
  t.begin_until_checkpoint();
  const auto workers = watch_all(t.here.workers());
  auto argv = t.arguments({"--checkpoint-every", "50", "--allow-changed", "program"});
  argv[0] = t.here.make_changed_charlm();
  auto driver = t.here.start(argv);
  CHECK(all_end(workers, 10'000ms));
  const auto result = t.finish(driver);
  INFO(result.dump(2));
  CHECK(result["resumed_from_step"] >= 50);
  CHECK(result["programs"].size() == 2);
}

TEST_CASE("Ctrl-C ends a run that was taken over, after its step and with a checkpoint") {
  test_run t{1};
  t.begin(100);
  auto driver = t.here.start(t.arguments());
  t.here.await(driver, [&] { return contains(driver.err(), "the driver was started again"); });
  driver.signal(SIGINT);
  CHECK(driver.wait() == exit_status{130, {}});
  const auto result = t.here.result("run");
  CHECK(result["status"] == "stopped");
  CHECK(!t.here.checkpoints("run").empty());
  CHECK(t.here.workers_vanish());
}

TEST_CASE("of two drivers that claim a run the later one has it, and the other leaves its workers alone") {
  test_run t{1};
  auto first = t.here.start(t.arguments());
  t.here.await_step(first, "run", 100);
  const auto workers = t.here.workers();
  // As on a file system without locks.
  std::filesystem::remove(t.here.run_directory("run") / ".lock");
  auto second = t.here.start(t.arguments());
  CHECK(first.wait() == exit_status{1, {}});
  CHECK(contains(first.err(), "another driver has taken the run over"));
  t.here.await(second, [&] { return contains(second.err(), "the driver was started again"); });
  CHECK(t.here.workers() == workers);
  std::ignore = t.finish_undisturbed(second);
}
