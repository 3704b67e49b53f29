#include "trainer/run_events.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::actors;

namespace {

failure_record failure_of(std::uint32_t worker, std::string message) {
  failure_record result;
  result.worker = {worker};
  result.reason = {errc::worker_lost, std::move(message)};
  return result;
}

} // namespace

TEST_CASE("of what observers hear, progress and what is no warning are no events") {
  CHECK_FALSE(event_of(run_progress{}));
  CHECK_FALSE(event_of(run_notice{{}, false, "text"}));
  CHECK(*event_of(run_notice{{}, true, "text"}) == nlohmann::ordered_json{{"event", "warning"}, {"text", "text"}});
}

TEST_CASE("an event says what it cost, and why it was") {
  const auto saved = *event_of(checkpoint_saved{{}, {7}, "path", 4096, 0.25});
  CHECK(saved["event"] == "checkpoint");
  CHECK(saved["bytes"] == 4096);
  CHECK(saved["seconds"] == 0.25);
  generation_record generation;
  generation.steps_redone = 1;
  generation.reason = "worker 1 ended";
  CHECK((*event_of(generation))["steps_redone"] == 1);
  CHECK((*event_of(generation))["cause"] == "worker 1 ended");
  CHECK(event_of(not_finite_row{{9}, shard_id{5}, "loss", std::numeric_limits<double>::infinity()}, {1}) ==
        nlohmann::ordered_json{
            {"event", "not_finite"}, {"metric", "loss"}, {"value", "inf"}, {"step", 9}, {"rank", 1}, {"shard", 5}});
  CHECK(event_of(pause_row{{2}, {9}, 62'500}, {1}) ==
        nlohmann::ordered_json{{"event", "pause"}, {"generation", 2}, {"rank", 1}, {"step", 9}, {"seconds", 0.0625}});
  run_result result;
  result.status = run_status::completed;
  CHECK_FALSE(event_of(result).contains("cause"));
  result.fail({errc::io_error, "full"});
  CHECK(event_of(result)["cause"] == "full");
  CHECK_FALSE(event_of(result).contains("goodput"));
  result.goodput = {10, 8, 40, 2, {.redone = 1, .other = 1}};
  CHECK(event_of(result)["goodput"]["ratio"] == 0.8);
  CHECK(event_of(result.goodput)["goodput"]["lost"]["redone"] == 1.0);
}

TEST_CASE("each failure is an event once, also when causes are put first later") {
  new_failures events;
  std::vector<failure_record> all{failure_of(1, "cut off"), failure_of(1, "again")};
  CHECK(events.take(all).size() == 2);
  CHECK(events.take(all).empty());
  all.insert(all.begin(), failure_of(2, "the cause"));
  const auto more = events.take(all);
  REQUIRE(more.size() == 1);
  CHECK(event_of(more[0])["worker"] == 2);
  CHECK(event_of(more[0])["cause"] == "the cause");
}
