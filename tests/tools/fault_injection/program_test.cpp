#include <processes.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// Runs of troupe-chaos in directories of their own.
struct trial {
  scratch_directory scratch;

  [[nodiscard]] child_process start(std::vector<std::string> more) const {
    std::vector<std::string> argv{TROUPE_CHAOS, "--directory", (scratch.path() / "chaos").string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return {{std::move(argv)}, scratch.path() / "output"};
  }

  /// What it has started, and what that has started.
  [[nodiscard]] std::vector<pid_t> processes() const {
    return processes_with("TROUPE_KEYS", (scratch.path() / "chaos" / "keys").string());
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a run that ends with other bits is found, and kept") {
  trial t;
  // Sums that are left to the transport depend on the number of workers.
  auto process = t.start({"--program", "charlm --fast --batch 64 --embedding 16 --hidden 32 --evaluate-every 1000000",
                          "--kinds", "kill", "--faults", "1", "--mean-interval", "100ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(process.out(), "NO   the disturbed run ends with the bits of the undisturbed one"));
  CHECK(std::filesystem::exists(t.scratch.path() / "chaos" / "runs" / "disturbed" / "result.json"));
}

TEST_CASE("a run that stands still is told, with what its workers do") {
  trial t;
  // This seed freezes one for longer than the limit, which is shorter than anybody takes to notice.
  auto process = t.start(
      {"--kinds", "freeze", "--faults", "50", "--seed", "5", "--mean-interval", "300ms", "--hung-after", "1000ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{1, {}});
  CHECK(contains(process.out(), "HUNG: no progress for 1 s"));
  CHECK(contains(process.out(), "T (stopped)"));
  CHECK(t.processes().empty());
}

TEST_CASE("an interrupted trial leaves no process behind") {
  trial t;
  auto process = t.start({"--kinds", "freeze", "--faults", "50", "--mean-interval", "100ms"});
  REQUIRE(becomes_true([&] { return contains(process.out(), "freeze      process") || !process.running(); }));
  CHECK(!t.processes().empty());
  process.signal(SIGINT);
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{130, {}});
  CHECK(t.processes().empty());
}

TEST_CASE("what is not permitted or not possible is left out, and said so") {
  trial t;
  auto process = t.start({"--nodes", "0", "--kinds", "kill,kill-node,freeze-node", "--faults", "1", "--workers", "2",
                          "--mean-interval", "100ms"});
  auto status = process.wait();
  INFO(process.out() << process.err());
  CHECK(status == exit_status{0, {}});
  CHECK(contains(process.out(), "left out: kill-node: there are no caf-nodes"));
  CHECK(contains(process.out(), "identical"));
  CHECK(!std::filesystem::exists(t.scratch.path() / "chaos"));
}

TEST_CASE("what cannot be meant is refused before anything starts") {
  for (const auto& mistake : std::vector<std::vector<std::string>>{{"--kinds", "kil"},
                                                                   {"--faults", "0"},
                                                                   {"--workers", "0"},
                                                                   {"--program", "charlm $(true)"},
                                                                   {"--faults", "3", "--minutes", "1"},
                                                                   {"--mean-interval", "soon"},
                                                                   {"--no-such-option"}}) {
    trial t;
    auto process = t.start(mistake);
    auto status = process.wait();
    INFO(mistake.front());
    CHECK(status == exit_status{2, {}});
    CHECK(!std::filesystem::exists(t.scratch.path() / "chaos"));
  }
}
