#include <built.hpp>
#include <processes.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <sys/mount.h>
#include <vector>

using namespace troupe::testing;

namespace {

/// Runs troupe-chaos in its own directory.
struct test_run {
  scratch_directory scratch;

  [[nodiscard]] child_process start(std::vector<std::string> more) const {
    std::vector<std::string> argv{built("bin/troupe-chaos"), "--directory", (scratch.path() / "chaos").string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return {{std::move(argv)}, scratch.path() / "output"};
  }

  /// The processes that it has started, directly or indirectly.
  [[nodiscard]] std::vector<pid_t> processes() const {
    return processes_with("TROUPE_KEYS", (scratch.path() / "chaos" / "keys").string());
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a run that ends with other bits is found, and its files are kept") {
  test_run t;
  // With --fast the sums depend on the number of workers.
  auto process = t.start({"--program", "charlm --fast --batch 64 --embedding 16 --hidden 32 --evaluate-every 1000000",
                          "--kinds", "kill", "--faults", "1", "--mean-interval", "100ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(process.out(), "NO   the disturbed run ends with the bits of the undisturbed one"));
  CHECK(std::filesystem::exists(t.scratch.path() / "chaos" / "runs" / "disturbed" / "result.json"));
}

TEST_CASE("a hung run is reported with the state of its workers") {
  test_run t;
  // This seed freezes a worker for longer than the limit, which is shorter than the run takes to notice.
  auto process = t.start(
      {"--kinds", "freeze", "--faults", "50", "--seed", "5", "--mean-interval", "300ms", "--hung-after", "1000ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(process.out(), "HUNG: no progress for 1 s"));
  CHECK(contains(process.out(), "T (stopped)"));
  CHECK(t.processes().empty());
}

TEST_CASE("an interrupted run leaves no process behind") {
  test_run t;
  auto process = t.start({"--kinds", "freeze", "--faults", "50", "--mean-interval", "100ms"});
  REQUIRE(becomes_true([&] { return contains(process.out(), "freeze      process") || !process.running(); }));
  CHECK(!t.processes().empty());
  process.signal(SIGINT);
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{130, {}});
  CHECK(t.processes().empty());
}

TEST_CASE("a run that ends early thaws the disk that it has frozen") {
  for (auto signal : {SIGINT, SIGKILL}) {
    test_run t;
    auto process = t.start({"--kinds", "freeze-disk", "--faults", "50", "--mean-interval", "100ms", "--seed", "2"});
    REQUIRE(becomes_true([&] {
      return contains(process.out(), "freeze-disk the disk") || contains(process.out(), "skipped: freeze-disk");
    }));
    if (contains(process.out(), "skipped: freeze-disk")) {
      std::printf("SKIP: %s\n", process.out().c_str());
      return;
    }
    process.signal(signal);
    auto status = process.wait();
    INFO(process.out() << process.err());
    CHECK(status == (signal == SIGINT ? exit_status{130, {}} : exit_status{{}, SIGKILL}));
    // Who slept in a write ends now.
    CHECK(becomes_true([&] { return t.processes().empty(); }));
    const auto disk = t.scratch.path() / "chaos" / "runs" / "disturbed" / "checkpoints";
    write_file(disk / "file", "text");
    CHECK(read_file(disk / "file") == "text");
    ::umount2(disk.c_str(), MNT_DETACH);
  }
}

TEST_CASE("faults that are not permitted or not possible are skipped with a message") {
  test_run t;
  auto process = t.start({"--nodes", "0", "--kinds", "kill,kill-node,freeze-node", "--faults", "1", "--workers", "2",
                          "--mean-interval", "100ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{0, {}});
  CHECK(contains(process.out(), "skipped: kill-node: there are no caf-nodes"));
  CHECK(contains(process.out(), "identical"));
  CHECK(!std::filesystem::exists(t.scratch.path() / "chaos"));
}

TEST_CASE("invalid options are rejected before anything starts") {
  for (const auto& mistake : std::vector<std::vector<std::string>>{{"--kinds", "kil"},
                                                                   {"--faults", "0"},
                                                                   {"--workers", "0"},
                                                                   {"--program", "charlm $(true)"},
                                                                   {"--faults", "3", "--minutes", "1"},
                                                                   {"--mean-interval", "soon"},
                                                                   {"--no-such-option"}}) {
    test_run t;
    auto process = t.start(mistake);
    auto status = process.wait();
    INFO(mistake.front());
    CHECK(status == exit_status{2, {}});
    CHECK(!std::filesystem::exists(t.scratch.path() / "chaos"));
  }
}
