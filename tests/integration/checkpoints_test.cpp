#include "memory_file_system.hpp"
#include "scratch_runs.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t all_steps = 1800;

/// Runs with many checkpoints, and the same runs undisturbed.
struct test_run {
  scratch_runs here;

  [[nodiscard]] std::vector<std::string> arguments(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"--steps", std::to_string(all_steps)});
    return here.charlm(name, more);
  }

  nlohmann::json succeed(const std::string& name, std::vector<std::string> more) {
    auto ran = here.run(arguments(name, std::move(more)));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return here.result(name);
  }

  /// Checks that all checkpoints are complete and that the newest is the result's.
  void check_files(const std::string& name, const nlohmann::json& result) {
    std::vector<std::string> others;
    for (const auto& entry : fs::directory_iterator{here.run_directory(name) / "checkpoints"})
      if (!entry.path().filename().string().starts_with("step-"))
        others.push_back(entry.path().filename().string());
    CHECK(others == std::vector<std::string>{});
    CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
  }
};

} // namespace

TEST_CASE("every checkpoint that is due is taken or counted as skipped, and changes no bit") {
  test_run t;
  auto plain = t.succeed("plain", {"--workers", "2", "--checkpoint-every", "0"});
  CHECK(plain["due_checkpoints"] == nlohmann::json{{"taken", 1}, {"skipped", 0}, {"failed", 0}});
  for (const std::string in_flight : {"1", "0"}) {
    auto result = t.succeed("in-flight-" + in_flight,
                            {"--workers", "2", "--checkpoint-every", "10", "--checkpoints-in-flight", in_flight});
    INFO(result.dump(2));
    CHECK(result["state_sha256"] == plain["state_sha256"]);
    auto counts = result["due_checkpoints"];
    CHECK(counts["taken"].get<int>() + counts["skipped"].get<int>() == all_steps / 10);
    CHECK(counts["failed"] == 0);
    if (in_flight == "0")
      CHECK(counts["skipped"] == 0);
    t.check_files("in-flight-" + in_flight, result);
  }
}

TEST_CASE("the best checkpoints stay besides the latest, and the result names them, and the best with its score") {
  scratch_runs here;
  const auto ran = here.run({misbehaving_program(), "keep the best", "2", here.path("runs").string(), "run"});
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  const auto result = here.result("run");
  INFO(result.dump(2));
  CHECK(result["due_checkpoints"]["taken"] == 6);
  const auto path_of = [&](int step) {
    return (here.run_directory("run") / "checkpoints" / ("step-0000000" + std::to_string(step))).string();
  };
  // The scores of steps 1 to 6 are 5, 1, 4, 2, 3 and 6.
  const auto& kept = result["checkpoints"];
  REQUIRE(kept.size() == 3);
  auto at = kept.begin();
  for (const auto& [step, score] : {std::pair{2, 1.0}, std::pair{4, 2.0}, std::pair{6, 6.0}}) {
    CAPTURE(step);
    const auto& each = *at++;
    CHECK(each["step"] == step);
    CHECK(each["path"] == path_of(step));
    CHECK(each["score"] == score);
    CHECK(each["metrics"]["score"] == score);
    CHECK(stored_state(path_of(step)).size() == 64);
  }
  CHECK(result["best_checkpoint"] == kept[0]);
  CHECK(result["latest_checkpoint"] == path_of(6));
  CHECK(stored_state(path_of(6)) == result["state_sha256"]);
  CHECK(stored_state(path_of(2)) != result["state_sha256"]);
  auto on_disk = here.checkpoints("run");
  std::ranges::sort(on_disk);
  CHECK(on_disk == std::vector<fs::path>{path_of(2), path_of(4), path_of(6)});
}

TEST_CASE("workers that are killed more often than checkpoints are due cost no bit and do not prevent checkpoints") {
  test_run t;
  auto wanted = t.succeed("undisturbed", {"--workers", "1"})["state_sha256"];
  auto random = std::mt19937{20261121};
  auto driver =
      t.here.start(t.arguments("storm", {"--workers", "4", "--checkpoint-every", "3", "--max-failures", "1000"}));
  std::set<std::string> seen;
  for (std::uint64_t step = 0; step < 200; step += 10 + random() % 10) {
    t.here.await_step(driver, "storm", step);
    if (auto workers = t.here.workers(); workers.size() > 1)
      send_signal(workers[random() % workers.size()], SIGKILL);
    for (const auto& each : t.here.checkpoints("storm"))
      seen.insert(each.filename().string());
  }
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("storm");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["failures"].size() > 5);
  CHECK(seen.size() > 1);
  t.check_files("storm", result);
}

TEST_CASE("a run resumes from the newest checkpoint with the same bits after its driver was killed with checkpoints in "
          "flight") {
  test_run t;
  auto wanted = t.succeed("undisturbed", {"--workers", "1"})["state_sha256"];
  auto random = std::mt19937{7};
  for (int i = 0; i < 3; ++i) {
    auto driver =
        t.here.start(t.arguments("often", {"--workers", std::to_string(1 + i % 3), "--checkpoint-every", "2"}));
    auto before = t.here.checkpoints("often");
    t.here.await(driver, [&] { return t.here.checkpoints("often") != before; });
    std::this_thread::sleep_for(std::chrono::milliseconds{random() % 100});
    driver.signal(SIGKILL);
    driver.wait();
    CHECK(t.here.workers_vanish());
  }
  auto result = t.succeed("often", {"--workers", "2", "--resume", "required"});
  CHECK(result["resumed_from_step"].get<std::uint64_t>() > 0);
  CHECK(result["state_sha256"] == wanted);
  t.check_files("often", result);
}

TEST_CASE("streamed checkpoints equal those of a shared directory, and a run resumes from them") {
  test_run t;
  auto shared = t.succeed("shared", {"--workers", "2", "--checkpoint-sync", "shared"});
  for (const std::string workers : {"1", "3", "4"}) {
    auto name = "streamed-" + workers;
    auto half = t.here.run(t.here.charlm(
        name, {"--workers", workers, "--checkpoint-sync", "stream", "--checkpoint-every", "20", "--steps", "200"}));
    INFO(half.err);
    REQUIRE(half.status == exit_status{0, {}});
    auto result = t.succeed(name, {"--workers", "2", "--checkpoint-sync", "stream", "--resume", "required"});
    CHECK(result["resumed_from_step"] == 200);
    CHECK(result["state_sha256"] == shared["state_sha256"]);
    t.check_files(name, result);
  }
}

TEST_CASE("workers without access to the driver's directory stream automatically and survive failures") {
  test_run t;
  auto wanted = t.succeed("undisturbed", {"--workers", "1"})["state_sha256"];
  fs::create_directories(t.here.path("runs"));
  auto script = "mount -t tmpfs none " + t.here.path("runs").string() + " 2>/dev/null && exec " + caf_node_program();
  if (t.here.run({"/usr/bin/unshare", "-m", "sh", "-c", "mount -t tmpfs none " + t.here.path("runs").string()})
          .status != exit_status{0, {}}) {
    std::puts("SKIP: no right to make a mount namespace");
    return;
  }
  auto apart = t.here.start({"/usr/bin/unshare", "-m", "--propagation", "private", "sh", "-c", script});
  CHECK(becomes_true([&] { return contains(apart.out(), "listening on ") && contains(apart.out(), "\n"); }));
  auto line = apart.out().substr(0, apart.out().find('\n'));
  auto address = line.substr(line.rfind(' ') + 1);
  auto beside = t.here.start_node();
  auto nodes = address + "," + beside.address;
  auto driver = t.here.start(
      t.arguments("apart", {"--workers", "4", "--placement", "spread", "--nodes", nodes, "--checkpoint-every", "5"}));
  t.here.await_step(driver, "apart", 100);
  send_signal(t.here.worker_of_rank(1), SIGKILL);
  t.here.await_step(driver, "apart", 200);
  send_signal(t.here.worker_of_rank(0), SIGKILL);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("apart");
  INFO(result.dump(2));
  CHECK(contains(driver.err(), "checkpoints are streamed to"));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["due_checkpoints"]["failed"] == 0);
  t.check_files("apart", result);
}

TEST_CASE("a full disk costs checkpoints, but neither the old one nor the training") {
  test_run t;
  auto wanted = t.succeed("undisturbed", {"--workers", "1"})["state_sha256"];
  auto disk = memory_file_system{t.here.path("small"), "size=8m"};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a small disk");
    return;
  }
  auto arguments =
      t.arguments("full", {"--workers", "2", "--checkpoint-every", "5", "--storage", t.here.path("small").string()});
  auto driver = t.here.start(arguments);
  auto checkpoints = t.here.path("small") / "full" / "checkpoints";
  auto has_checkpoint = [&] {
    auto code = std::error_code{};
    for (const auto& entry : fs::directory_iterator{checkpoints, code})
      if (entry.path().filename().string().starts_with("step-"))
        return true;
    return false;
  };
  scratch_runs::await(driver, has_checkpoint);
  // Fills the disk, but leaves room for lines of metrics once the first checkpoint has failed.
  {
    auto filler = std::ofstream{t.here.path("small") / "filler"};
    auto block = std::string(4096, 'x');
    while (filler.write(block.data(), static_cast<std::streamsize>(block.size())).flush())
      ;
  }
  scratch_runs::await(driver, [&] { return contains(driver.err(), "failed, training goes on"); });
  CHECK(has_checkpoint());
  fs::remove(t.here.path("small") / "filler");
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = nlohmann::json::parse(read_file(t.here.path("small") / "full" / "result.json"));
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["due_checkpoints"]["failed"].get<int>() > 0);
  CHECK(wanted == stored_state(result["latest_checkpoint"].get<std::string>()));
}

#ifdef TROUPE_WITH_SLOW_DISK
TEST_CASE("a disk that is 100 times too slow costs checkpoints, but not the training") {
  test_run t;
  auto wanted = t.succeed("undisturbed", {"--workers", "1"})["state_sha256"];
  // Writing a state of 100 KB takes a second, and its syncs five seconds.
  auto slow =
      std::map<std::string, std::string>{{"LD_PRELOAD", built("lib/libslow_disk.so")},
                                         {"TROUPE_SLOW_DIRECTORY", t.here.run_directory("slow") / "checkpoints"},
                                         {"TROUPE_SLOW_BYTES_PER_SECOND", "100000"},
                                         {"TROUPE_SLOW_SYNC_MS", "300"}};
  auto driver = t.here.start(t.arguments("slow", {"--workers", "2", "--checkpoint-every", "5"}), slow);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  CHECK(contains(driver.err(), "skipped"));
  auto result = t.here.result("slow");
  CHECK(result["state_sha256"] == wanted);
  CHECK(result["due_checkpoints"]["failed"] == 0);
  // The checkpoints that were due while another was in flight.
  auto due = all_steps / 5;
  CHECK(result["due_checkpoints"]["skipped"].get<std::uint64_t>() > due / 2);
  t.check_files("slow", result);
}
#endif

TEST_CASE("a disk that becomes read-only costs checkpoints, and is used again when it is writable") {
  test_run t;
  auto arguments = [&](const std::string& name, const std::string& workers) {
    return t.here.charlm(name, {"--workers", workers, "--checkpoint-every", "5", "--steps", "3000"});
  };
  auto checkpoints = t.here.run_directory("frozen") / "checkpoints";
  fs::create_directories(checkpoints);
  auto disk = memory_file_system{checkpoints, "size=64m"};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a disk");
    return;
  }
  // It cannot become read-only while a file is open for writing.
  auto remount = [&](const std::string& mode) {
    auto done = [&] {
      return t.here.run({"/usr/bin/mount", "-o", "remount," + mode, checkpoints.string()}).status == exit_status{0, {}};
    };
    return becomes_true(done);
  };
  auto driver = t.here.start(arguments("frozen", "2"));
  scratch_runs::await(driver, [&] { return !fs::is_empty(checkpoints); });
  t.here.await_step(driver, "frozen", 20);
  REQUIRE(remount("ro"));
  scratch_runs::await(driver, [&] { return contains(driver.err(), "failed, training goes on"); });
  CHECK(contains(driver.err(), "Read-only file system"));
  REQUIRE(remount("rw"));
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  auto result = t.here.result("frozen");
  REQUIRE(t.here.run(arguments("undisturbed", "1")).status == exit_status{0, {}});
  CHECK(result["state_sha256"] == t.here.result("undisturbed")["state_sha256"]);
  CHECK(result["due_checkpoints"]["failed"].get<int>() > 0);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}
