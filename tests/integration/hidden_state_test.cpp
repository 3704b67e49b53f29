#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Runs the program and returns its result, after comparing the state's digest with the stored state's.
nlohmann::json run(scratch_runs& there, const std::string& name, const std::string& where, const std::string& fate,
                   const std::string& transfer_above, const std::string& workers, const std::string& steps) {
  auto done = there.run({built("tests/bin/hidden_state"), where, fate, transfer_above, workers, steps,
                         there.path("runs").string(), name});
  CAPTURE(done.err);
  CHECK(done.status.code == 0);
  auto result = there.result(name);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
  return result;
}

} // namespace

TEST_CASE("a state in memory without an address is healed, staged, stored and resumed like any other") {
  scratch_runs there;
  const auto wanted = run(there, "plain", "here", "lives", "0", "1", "60")["state_sha256"];
  CHECK(run(there, "two", "hidden", "lives", "0", "2", "60")["state_sha256"] == wanted);
  // The state is smaller than 16 MiB, so the others wait; with 0 they train meanwhile.
  for (const std::string transfer_above : {"16777216", "0"}) {
    CAPTURE(transfer_above);
    auto result = run(there, "healed-" + transfer_above, "hidden", "dies", transfer_above, "3", "60");
    CHECK(result["state_sha256"] == wanted);
    REQUIRE_FALSE(result["generations"].empty());
    CHECK(result["generations"].back()["workers"] == 3);
    CHECK(result["failures"].size() == 1);
  }
  CHECK(run(there, "resumed", "hidden", "lives", "0", "3", "30")["steps"] == 30);
  CHECK(run(there, "resumed", "hidden", "lives", "0", "2", "60")["state_sha256"] == wanted);
}

TEST_CASE("a worker that joins and computes by what is not tracked is named, with the step, the cause and the way on") {
  scratch_runs there;
  auto transfer_above = std::string{};
  SUBCASE("the others wait for it") {
    transfer_above = "16777216";
  }
  SUBCASE("the others train meanwhile") {
    transfer_above = "0";
  }
  const auto ran = there.run({built("tests/bin/hidden_state"), "here", "forgets", transfer_above, "3", "200",
                              there.path("runs").string(), "run"});
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  const auto result = there.result("run");
  INFO(result.dump(2));
  CHECK(result["status"] == "failed");
  CHECK(result["error"]["code"] == "mismatch");
  const auto message = result["error"]["message"].get<std::string>();
  // The last of three ranks, because the others have moved up.
  CHECK(contains(message, "the tracked state differs from rank 0's: tensor 'weights' on rank 2"));
  REQUIRE(!result["generations"].empty());
  const auto& joined = result["generations"].back();
  CHECK(joined["workers"] == 3);
  const auto first = joined["commit_point_step"].get<std::uint64_t>() + 1;
  CHECK(contains(message, "(rank 2 joined before step " + std::to_string(first) + ")"));
  CHECK(!contains(message, "rank 1 joined"));
  CHECK(contains(message, "on what a worker that joins does not have, because it is not tracked"));
  CHECK(contains(message, "troupe replay RUN --step "));
  CHECK(contains(ran.err, message));
}
