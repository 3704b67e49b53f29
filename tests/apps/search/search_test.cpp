#include <scratch_runs.hpp>

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <vector>

// Searches as users start them.

using namespace troupe::testing;

namespace {

class searches : public scratch_runs {
 public:
  /// A small search of this name.
  [[nodiscard]] std::vector<std::string> search(const std::string& name,
                                                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> result{built("bin/troupe-search"),
                                    "--name",
                                    name,
                                    "--storage",
                                    path("runs").string(),
                                    "--text",
                                    text().string(),
                                    "--hidden",
                                    "32",
                                    "--embedding",
                                    "16",
                                    "--batch",
                                    "64",
                                    "--first-rung",
                                    "15",
                                    "--steps",
                                    "60"};
    if (std::ranges::find(more, "--learning-rates") == more.end())
      result.insert(result.end(), {"--learning-rates", "0.001,0.02,0.004,0.1,0.05"});
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }

  /// All that a search has found out: each trial's loss and state at each rung it came to, and the winner.
  [[nodiscard]] nlohmann::json findings(const std::string& name) const {
    auto all = nlohmann::json::parse(read_file(run_directory(name) / "search.json"));
    auto result = nlohmann::json{{"winner", all.at("winner")}};
    for (const auto& each : all["scores"])
      result[each["trial"].dump() + " at " + each["steps"].dump()] = {each["held_out_loss"], each["state_sha256"]};
    return result;
  }

  /// A search on this machine, undisturbed.
  [[nodiscard]] nlohmann::json expected() {
    const auto ran = run(search("undisturbed"));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return findings("undisturbed");
  }
};

} // namespace

TEST_CASE("the winner has the bits of a run that trains with its learning rate from the beginning") {
  searches here;
  const auto ran = here.run(here.search("one"));
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  const auto found = here.findings("one");
  // Five trials, three of them, two, of which one is the best.
  CHECK(found.size() == 1 + 5 + 3 + 2);
  const auto winner = found["winner"]["trial"].get<int>();
  const auto rate = found["winner"]["learning_rate"].dump();
  const auto alone = here.run(here.charlm("alone", {"--steps", "60", "--learning-rate", rate, "--workers", "3"}));
  REQUIRE(alone.status == exit_status{0, {}});
  const auto state = here.result("alone")["state_sha256"].get<std::string>();
  CHECK(found[std::to_string(winner) + " at 60"][1] == state);
  // What is kept is the winner's.
  const auto best = here.run_directory("one") / "best";
  CHECK(std::filesystem::read_symlink(best) == "trial-" + std::to_string(winner));
  CHECK(stored_state(best / "checkpoints" / "step-00000060") == state);
  for (auto trial = 0; trial < 5; ++trial)
    CHECK(std::filesystem::exists(here.run_directory("one") / ("trial-" + std::to_string(trial)) / "checkpoints") ==
          (trial == winner));
  CHECK(contains(ran.out, "best learning rate " + rate));
  CHECK(here.workers_vanish());
}

TEST_CASE("leases of two nodes, more workers and a killed one change neither the winner nor any bit") {
  searches here;
  const auto expected = here.expected();
  auto first = here.start_node({"--cpus", "2"});
  auto second = here.start_node({"--cpus", "2"});
  auto search =
      here.start(here.search("disturbed", {"--workers", "2", "--nodes", first.address + "," + second.address}));
  // One process of each trial as it appears, up to three.
  std::vector<pid_t> killed;
  here.await(search, [&] {
    for (auto pid : here.workers())
      if (killed.size() < 3 && environment_of(pid)["RANK"] == "1" && std::ranges::find(killed, pid) == killed.end()) {
        send_signal(pid, SIGKILL);
        killed.push_back(pid);
      }
    return killed.size() == 3;
  });
  INFO(search.err());
  CHECK(search.wait() == exit_status{0, {}});
  CHECK(here.findings("disturbed") == expected);
}

TEST_CASE("a search that is killed or stopped goes on where it was") {
  searches here;
  const auto expected = here.expected();
  const auto scores = [&](const std::string& name) {
    const auto all = nlohmann::json::parse(read_file(here.run_directory(name) / "search.json"), nullptr, false);
    return all.is_discarded() ? std::size_t{0} : all["scores"].size();
  };
  auto killed = here.start(here.search("again"));
  here.await(killed, [&] { return scores("again") >= 2; });
  killed.signal(SIGKILL);
  killed.wait();
  CHECK(here.workers_vanish());
  auto stopped = here.start(here.search("again"));
  here.await(stopped, [&] { return scores("again") >= 6; });
  stopped.signal(SIGINT);
  CHECK(stopped.wait() == exit_status{128 + SIGINT, {}});
  CHECK(here.workers_vanish());
  CHECK(here.run(here.search("again")).status == exit_status{0, {}});
  CHECK(here.findings("again") == expected);
  // Nothing is left to do.
  const auto last = here.run(here.search("again", {"--quiet"}));
  CHECK(last.status == exit_status{0, {}});
  CHECK(contains(last.out, "best learning rate"));
  CHECK_FALSE(contains(last.out, "trial-0 ("));
}

TEST_CASE("what cannot be searched is refused with a way to mend it") {
  searches here;
  const auto no_rung = here.run(here.search("refused", {"--factor", "1"}));
  CHECK(no_rung.status == exit_status{1, {}});
  CHECK(contains(no_rung.err, "the factor between rungs is 1: at least 2"));
  CHECK_FALSE(std::filesystem::exists(here.run_directory("refused")));
  CHECK(here.run(here.search("refused", {"--learning-rates", "0.1,zero"})).status == exit_status{2, {}});
  CHECK(here.run(here.search("../refused")).status == exit_status{1, {}});
  const auto large = here.run(here.search("large", {"--workers", "2", "--cpus-per-worker", "1000"}));
  CHECK(large.status == exit_status{1, {}});
  CHECK(contains(large.err, "1000 CPUs"));
  REQUIRE(here.run(here.search("there", {"--learning-rates", "0.01"})).status == exit_status{0, {}});
  const auto other = here.run(here.search("there", {"--learning-rates", "0.02"}));
  CHECK(other.status == exit_status{1, {}});
  CHECK(contains(other.err, "search.json is of a search with other settings"));
}
