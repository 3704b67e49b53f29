#include <troupe/result.hpp>

#include "sample_messages.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limits>

using namespace troupe;
using nlohmann::json;

TEST_CASE("a result's JSON has all fields of the result") {
  auto out = json::parse(to_json(sample_result()));
  CHECK(out["run"] == sample_run.value);
  CHECK(out["name"] == "digits");
  CHECK(out["status"] == "stopped");
  CHECK(out["steps"] == 500);
  CHECK(out["resumed_from_step"] == 250);
  CHECK(out["metrics"] == json{{"accuracy", 0.75}, {"loss", -1.5e+30}});
  CHECK(out["state_sha256"] == std::string(64, 'a'));
  CHECK(out["exact"] == false);
  CHECK(out["latest_checkpoint"] == "/runs/digits/checkpoints/step-00000500");
  CHECK(out["metrics_from"] == json{{"accuracy", 490}, {"loss", 500}});
  CHECK(out["best_checkpoint"] == json{{"step", 400},
                                       {"path", "/runs/digits/checkpoints/step-00000400"},
                                       {"score", 0.75},
                                       {"metrics", {{"accuracy", 0.75}}}});
  CHECK(out["checkpoints"] == json::array({out["best_checkpoint"]}));
  CHECK(out["due_checkpoints"] == json{{"taken", 5}, {"skipped", 3}, {"failed", 1}});
  CHECK(json::parse(to_json(run_result{}))["best_checkpoint"] == nullptr);
  CHECK(out["path"] == "/runs/digits");
  CHECK(out["error"] == json{{"code", "stopped"}, {"message", "stopped on request"}});
  CHECK(out["seconds"] == json{{"to_first_step", 0.125}, {"total", 8.5}});
  CHECK(out["goodput"]["ratio"] == 0.5);
  CHECK(out["goodput"]["seconds"] == 8.5);
  CHECK(out["goodput"]["productive"] == 4.25);
  CHECK(out["goodput"]["steps"] == 450);
  CHECK(out["goodput"]["steps_redone"] == 3);
  CHECK(out["goodput"]["lost"] == json{{"start_up", 0.5},
                                       {"capacity", 0.25},
                                       {"regroup", 0.75},
                                       {"restart", 0.125},
                                       {"redone", 1.5},
                                       {"paused", 0.375},
                                       {"checkpoint", 0.0625},
                                       {"ending", 0.875},
                                       {"other", 1.0}});
  REQUIRE(out["failures"].size() == 1);
  CHECK(out["failures"][0] == json{{"worker", 3},
                                   {"pid", 4711},
                                   {"rank", 2},
                                   {"generation", 7},
                                   {"step", 41},
                                   {"host", "host-a"},
                                   {"code", "worker_lost"},
                                   {"message", "it ended"},
                                   {"consequence", true},
                                   {"last_lines", {"last", "lines"}}});
  CHECK(out["restarts"] == 2);
  REQUIRE(out["generations"].size() == 1);
  CHECK(out["generations"][0] == json{{"generation", 8},
                                      {"attempt", 2},
                                      {"workers", 3},
                                      {"commit_point_step", 41},
                                      {"steps_redone", 1},
                                      {"interrupted_step", true},
                                      {"pause_seconds", 0.0625},
                                      {"reason", "worker 3 (rank 2) ended"}});
  REQUIRE(out["workers"].size() == 1);
  CHECK(out["workers"][0] ==
        json{{"worker", 3}, {"rank", 2}, {"host", "host-a"}, {"node", "10.0.0.7:4000"}, {"pid", 4711}});
}

TEST_CASE("a run without failures has an empty history") {
  auto out = json::parse(to_json(run_result{}));
  CHECK(out["restarts"] == 0);
  CHECK(out["generations"] == json::array());
  CHECK(out["failures"] == json::array());
}

TEST_CASE("a result without an error has null in its place") {
  CHECK(json::parse(to_json(run_result{}))["error"].is_null());
}

TEST_CASE("invalid UTF-8 and non-finite numbers do not break the JSON") {
  auto result = sample_result();
  result.failures[0].last_lines = {"\xff\xfe broken"};
  result.reason = {errc::io_error, "\xc3"};
  result.metrics["loss"] = std::numeric_limits<double>::quiet_NaN();
  auto out = json::parse(to_json(result), nullptr, false);
  REQUIRE_FALSE(out.is_discarded());
  CHECK(out["metrics"]["loss"].is_null());
  CHECK(out["failures"][0]["last_lines"][0].get<std::string>().find(" broken") != std::string::npos);
}

TEST_CASE("only a failed run is an error to the shell") {
  auto result = run_result{};
  CHECK(result.exit_code() == 1);
  result.status = run_status::completed;
  CHECK(result.exit_code() == 0);
  result.status = run_status::stopped;
  CHECK(result.exit_code() == 0);
}

TEST_CASE("every status has its name") {
  CHECK(to_string(run_status::completed) == "completed");
  CHECK(to_string(run_status::stopped) == "stopped");
  CHECK(to_string(run_status::failed) == "failed");
}
