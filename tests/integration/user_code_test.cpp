#include "scratch_runs.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace troupe::testing;

namespace {

/// Training functions that fail in the first generation of a run, which is expected to survive.
struct test_run {
  scratch_runs here;

  outcome run(const std::string& how, const std::string& workers = "3") {
    auto result = here.run({misbehaving_program(), how, workers, here.path("runs").string(), name_of(how)});
    CHECK(here.workers_vanish());
    return result;
  }

  [[nodiscard]] nlohmann::json result(const std::string& how) const { return here.result(name_of(how)); }

  static std::string name_of(std::string how) {
    std::ranges::replace(how, ' ', '-');
    return how;
  }
};

} // namespace

TEST_CASE("an exception that does not repeat costs its worker, but not the run") {
  test_run t;
  t.run("heal behave");
  auto ran = t.run("heal throw");
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  auto result = t.result("heal throw");
  INFO(result.dump(2));
  // The configuration does not affect the trained state.
  CHECK(result["state_sha256"] == t.result("heal behave")["state_sha256"]);
  REQUIRE(result["failures"].size() == 1);
  CHECK(result["failures"][0]["code"] == "user_error");
  CHECK(contains(result["failures"][0]["message"], "the gradient is on holiday"));
  CHECK(result["failures"][0]["consequence"] == false);
  CHECK(result["restarts"] == 0);
}

TEST_CASE("an exception that repeats in the same step ends the run with its text") {
  test_run t;
  auto ran = t.run("heal throw always");
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "the gradient is on holiday"));
  auto result = t.result("heal throw always");
  INFO(result.dump(2));
  CHECK(result["status"] == "failed");
  CHECK(result["error"]["code"] == "user_error");
  CHECK(contains(result["error"]["message"], "rank 1 after step 2"));
  CHECK(result["failures"].size() >= 2);
}

TEST_CASE("an exception that all ranks throw costs no step: the state before it is saved") {
  for (const std::string workers : {"1", "2", "5"}) {
    CAPTURE(workers);
    test_run t;
    for (const auto begin : {0, 4}) {
      const auto ran = t.run("throw everywhere", workers);
      INFO(ran.err);
      CHECK(ran.status == exit_status{1, {}});
      const auto result = t.result("throw everywhere");
      INFO(result.dump(2));
      CHECK(result["error"]["code"] == "user_error");
      CHECK(contains(result["error"]["message"], "after step 4: the gradient is on holiday"));
      CHECK(result["resumed_from_step"] == begin);
      CHECK(t.here.checkpoints(t.name_of("throw everywhere")).size() == 1);
    }
  }
}

TEST_CASE("a rank that hangs in user code is named and replaced") {
  test_run t;
  t.run("heal behave");
  auto ran = t.run("heal sleep");
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  CHECK(contains(ran.err, "worker 1 (rank 1) has made no progress in user code"));
  CHECK(contains(ran.err, "after step 2"));
  auto result = t.result("heal sleep");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == t.result("heal behave")["state_sha256"]);
  REQUIRE(result["failures"].size() == 1);
  CHECK(result["failures"][0]["rank"] == 1);
  CHECK(contains(result["failures"][0]["message"], "user code"));
}

TEST_CASE("a slow rank that sends heartbeats is not replaced") {
  test_run t;
  auto ran = t.run("heal dawdle");
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  CHECK(!contains(ran.err, "has made no progress"));
  CHECK(t.result("heal dawdle")["failures"].empty());
}

TEST_CASE("others wait for a slow rank for longer than a collective operation may take") {
  test_run t;
  auto ran = t.run("heal linger");
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  CHECK(t.result("heal linger")["failures"].empty());
}

TEST_CASE("a custom loop restarts from the latest checkpoint when a peer is lost") {
  test_run t;
  auto ran = t.run("heal plain");
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  auto result = t.result("heal plain");
  INFO(result.dump(2));
  CHECK(result["steps"] == 6);
  CHECK(result["restarts"] == 1);
  REQUIRE(result["generations"].size() == 1);
  CHECK(result["generations"][0]["attempt"] == 2);
  CHECK(result["generations"][0]["commit_point_step"] == 2);
  CHECK(result["failures"][0]["code"] == "worker_lost");
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}

TEST_CASE("a joiner enters a run of many short loops and knows the results between them") {
  test_run t;
  // The worker to be killed does not exist.
  t.run("heal epochs", "1");
  auto wanted = t.result("heal epochs")["state_sha256"];
  for (const std::string how : {"heal epochs", "heal epochs staged"}) {
    std::filesystem::remove_all(t.here.run_directory(test_run::name_of(how)));
    auto ran = t.run(how);
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    auto result = t.result(how);
    INFO(result.dump(2));
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["steps"] == 240);
    CHECK(result["restarts"] == 0);
    REQUIRE(result["failures"].size() == 1);
    REQUIRE(!result["generations"].empty());
    CHECK(result["generations"].back()["workers"] == 3);
    // One in place of the lost worker.
    CHECK(result["workers"].size() == 4);
  }
}
