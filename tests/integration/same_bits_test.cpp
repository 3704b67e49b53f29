#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

using namespace troupe::testing;

namespace {

/// For runs that are stopped half-way: more steps than they can do before the stop reaches them.
constexpr std::uint64_t all_steps = 1500;

/// The digest that a run reports, after comparing it with that of its checkpoint.
std::string trained(scratch_runs& here, const std::string& name, std::vector<std::string> more) {
  auto ran = here.run(here.charlm(name, std::move(more)));
  INFO(name << ": " << ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  auto result = here.result(name);
  CHECK(result["status"] == "completed");
  CHECK(result["exact"] == true);
  auto digest = result["state_sha256"].get<std::string>();
  CHECK(digest.size() == 64);
  CHECK(digest == stored_state(result["latest_checkpoint"].get<std::string>()));
  return digest;
}

/// Trains with every number of workers and checks that all end with the same digest.
std::string same_for_all_workers(scratch_runs& here, const std::string& place, const std::string& shards,
                                 const std::vector<std::string>& more) {
  std::string first;
  for (const auto* workers : {"1", "2", "3", "4", "5", "8"}) {
    auto arguments = more;
    arguments.insert(arguments.end(), {"--shards", shards, "--workers", workers});
    auto digest = trained(here, place + "-v" + shards + "-n" + workers, arguments);
    if (first.empty())
      first = digest;
    CHECK_MESSAGE(digest == first, workers << " workers, " << shards << " shards, " << place);
  }
  return first;
}

/// Waits until a run has applied a step beyond `after`, stops it, and returns the step it has reached.
std::uint64_t interrupt(scratch_runs& here, const std::string& name, std::uint64_t after,
                        std::vector<std::string> more) {
  auto driver = here.start(here.charlm(name, std::move(more)));
  here.await_step(driver, name, after);
  driver.signal(SIGTERM);
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{143, {}});
  auto result = here.result(name);
  CHECK(result["status"] == "stopped");
  auto steps = result["steps"].get<std::uint64_t>();
  CHECK(steps > after);
  CHECK(steps < all_steps);
  CHECK(result["resumed_from_step"] == after);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
  return steps;
}

} // namespace

TEST_CASE("any number of workers on any number of nodes ends with the same bits, which depend only on the shards") {
  scratch_runs here;
  auto one = here.start_node();
  auto two = here.start_node();
  std::map<std::string, std::string> digests;
  for (const std::string shards : {"8", "13"}) {
    digests[shards] = same_for_all_workers(here, "embedded", shards, {});
    CHECK(same_for_all_workers(here, "one-node", shards, {"--nodes", one.address}) == digests[shards]);
    CHECK(same_for_all_workers(here, "two-nodes", shards,
                               {"--nodes", one.address + "," + two.address, "--placement", "spread"}) ==
          digests[shards]);
  }
  CHECK(digests["8"] != digests["13"]);
}

TEST_CASE("another seed, one changed byte of text, and one more step each change the digest") {
  scratch_runs here;
  auto original = trained(here, "original", {"--workers", "2"});
  CHECK(trained(here, "again", {"--workers", "2"}) == original);
  CHECK(trained(here, "seed", {"--workers", "2", "--seed", "2"}) != original);
  CHECK(trained(here, "step", {"--workers", "2", "--steps", "13"}) != original);
  // Small runs see only part of the text, so changing a byte that they do not see would not change the digest. A run
  // over the whole text sees it.
  auto whole = std::vector<std::string>{"--batch", "2000", "--workers", "2"};
  auto before = trained(here, "whole", whole);
  auto text = read_file(here.text());
  text[text.size() / 2] = text[text.size() / 2] == 'x' ? 'y' : 'x';
  write_file(here.text(), text);
  CHECK(trained(here, "byte", whole) != before);
}

TEST_CASE("a run that is stopped half-way and resumed on another number of workers ends like the undisturbed one") {
  scratch_runs here;
  auto steps = std::vector<std::string>{"--steps", std::to_string(all_steps)};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), steps.begin(), steps.end());
    return more;
  };
  auto undisturbed = trained(here, "undisturbed", with({"--workers", "2"}));

  SUBCASE("by SIGTERM") {
    auto reached = interrupt(here, "stopped", 0, with({"--workers", "3"}));
    CHECK(trained(here, "stopped", with({"--workers", "4", "--resume", "required"})) == undisturbed);
    CHECK(here.result("stopped")["resumed_from_step"] == reached);
  }
  SUBCASE("twice, on nodes and back") {
    auto one = here.start_node();
    auto two = here.start_node();
    auto nodes = std::vector<std::string>{"--nodes", one.address + "," + two.address, "--placement", "spread"};
    auto on_nodes = with({"--workers", "5"});
    on_nodes.insert(on_nodes.end(), nodes.begin(), nodes.end());
    auto first = interrupt(here, "moved", 0, on_nodes);
    auto second = interrupt(here, "moved", first, with({"--workers", "2"}));
    CHECK(trained(here, "moved", with({"--workers", "1"})) == undisturbed);
    CHECK(here.result("moved")["resumed_from_step"] == second);
  }
  SUBCASE("by fewer steps at first") {
    trained(here, "short", {"--workers", "5", "--steps", "700"});
    CHECK(trained(here, "short", with({"--workers", "1", "--resume", "required"})) == undisturbed);
    CHECK(here.result("short")["resumed_from_step"] == 700);
  }
}

TEST_CASE("the ledger shows each shard of each step computed once, by ranks in their own processes") {
  scratch_runs here;
  trained(here, "ledger", {"--workers", "3", "--shards", "8", "--steps", "20", "--ledger"});
  std::map<std::pair<int, int>, int> computed;
  std::map<int, std::set<int>> pids_of_rank;
  std::set<int> pids;
  for (const auto& row : read_lines(here.run_directory("ledger") / "ledger.jsonl")) {
    for (int shard = row["first_shard"]; shard < row["last_shard"].get<int>(); ++shard)
      ++computed[{row["step"].get<int>(), shard}];
    pids_of_rank[row["rank"]].insert(row["pid"].get<int>());
    pids.insert(row["pid"].get<int>());
  }
  std::map<int, int> timed;
  for (const auto& row : read_lines(here.run_directory("ledger") / "times.jsonl"))
    timed[row["rank"]] += row["steps"].get<int>();
  CHECK(timed == std::map{std::pair{0, 20}, std::pair{1, 20}, std::pair{2, 20}});
  CHECK(computed.size() == 20 * 8);
  for (const auto& [where, times] : computed)
    CHECK_MESSAGE(times == 1, "step " << where.first << ", shard " << where.second);
  CHECK(pids_of_rank.size() == 3);
  CHECK(pids.size() == 3);
  for (const auto& [rank, own] : pids_of_rank)
    CHECK_MESSAGE(own.size() == 1, "rank " << rank);
}

TEST_CASE("the ledger of a resumed run contains each shard of each step once") {
  scratch_runs here;
  trained(here, "ledger", {"--workers", "3", "--steps", "7", "--ledger"});
  trained(here, "ledger", {"--workers", "2", "--steps", "15", "--ledger"});
  std::map<std::pair<int, int>, int> computed;
  for (const auto& row : read_lines(here.run_directory("ledger") / "ledger.jsonl"))
    for (int shard = row["first_shard"]; shard < row["last_shard"].get<int>(); ++shard)
      ++computed[{row["step"].get<int>(), shard}];
  CHECK(computed.size() == 15 * 8);
  for (const auto& [where, times] : computed)
    CHECK_MESSAGE(times == 1, "step " << where.first << ", shard " << where.second);
}

TEST_CASE("the fast mode completes and does not claim to be exact") {
  scratch_runs here;
  auto ran = here.run(here.charlm("fast", {"--fast", "--workers", "3"}));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  auto result = here.result("fast");
  CHECK(result["status"] == "completed");
  CHECK(result["exact"] == false);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}
