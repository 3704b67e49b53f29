#include "run/ledger.hpp"
#include "run/summary.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace troupe::tool;
using nlohmann::json;

namespace {

json row(std::uint64_t step, std::uint32_t first, std::vector<std::uint64_t> gradient, std::uint64_t state) {
  return {{"step", step},
          {"digest", {{"pieces", 3}, {"first_piece", first}, {"gradient", gradient}, {"state", state}}}};
}

digest_ledger ledger_of(const std::vector<json>& rows) {
  digest_ledger result;
  for (const auto& each : rows)
    result.add(each);
  return result;
}

constexpr auto all = ~std::uint64_t{0};

} // namespace

TEST_CASE(
    "ledgers of different numbers of workers are equal where their pieces are, and the first other one is named") {
  const auto alone = ledger_of({row(1, 0, {1, 2, 3}, 9), row(2, 0, {4, 5, 6}, 9)});
  // Two ranks, and piece 0 follows the last.
  auto named = row(1, 2, {3, 1}, 9);
  named["names"] = {{"pieces", {"a", "b", "c"}},
                    {"slices", json::array({json::array({"tensor 'w'", 2}), json::array({"values()", 1})})}};
  const auto same = ledger_of({named, row(1, 0, {1, 2}, 9), row(2, 2, {6, 4}, 9), row(2, 0, {4, 5}, 9)});
  const auto equal = compare(same, alone, 0, all);
  CHECK(equal.compared == 2);
  CHECK(equal.incomplete == 0);
  CHECK_FALSE(equal.differs);
  const auto other = compare(same, ledger_of({row(1, 0, {1, 2, 3}, 9), row(2, 0, {4, 7, 6}, 8)}), 0, all);
  CHECK(other.differs == 2);
  CHECK(other.what == std::vector<std::string>{"b", "the state after it: values()"});
  CHECK(same.name_of_slice(4) == "tensor 'w' (its slice 2 of 2)");
}

TEST_CASE("a part that was lost with its worker is counted, and what is left is compared") {
  const auto whole = ledger_of({row(1, 0, {1, 2, 3}, 9)});
  const auto lost = compare(whole, ledger_of({row(1, 0, {1, 2}, 9)}), 0, all);
  CHECK(lost.incomplete == 1);
  CHECK_FALSE(lost.differs);
  CHECK(compare(whole, ledger_of({row(1, 0, {1, 3}, 9)}), 0, all).differs == 1);
}

TEST_CASE("ranks of one run that digest a piece differently are told, and other programs, and only steps asked for") {
  const auto whole = ledger_of({row(1, 0, {1, 2, 3}, 9)});
  const auto split = compare(whole, ledger_of({row(1, 0, {1, 2, 3}, 9), row(1, 1, {7}, 9)}), 0, all);
  CHECK(split.differs == 1);
  CHECK(split.what == std::vector<std::string>{"piece 1 of the gradient, on which ranks of one run disagree"});
  auto larger = row(1, 0, {1, 2, 3, 4}, 9);
  larger["digest"]["pieces"] = 4;
  CHECK(compare(whole, ledger_of({larger}), 0, all).what.at(0).find("two different programs") != std::string::npos);
  CHECK(compare(whole, whole, 2, all).compared == 0);
}

TEST_CASE("a summary has causes of failures, rank 0's metrics, and what pauses and repeated steps cost") {
  const std::vector<json> metrics{{{"step", 1}, {"rank", 0}, {"seconds", 1.0}, {"loss", 4.0}},
                                  {{"step", 1}, {"rank", 1}, {"seconds", 1.5}, {"loss", 8.0}},
                                  {{"step", 8}, {"rank", 0}, {"seconds", 10.0}, {"loss", 2.0}}};
  const std::vector<json> events{{{"event", "failure"}, {"rank", 1}, {"consequence", false}, {"cause", "killed"}},
                                 {{"event", "failure"}, {"rank", 0}, {"consequence", true}, {"cause", "aborted"}},
                                 {{"event", "generation"}, {"generation", 2}, {"steps_redone", 2}},
                                 {{"event", "pause"}, {"generation", 2}, {"rank", 0}, {"seconds", 1.0}},
                                 {{"event", "pause"}, {"generation", 2}, {"rank", 2}, {"seconds", 2.0}}};
  const auto x = summarize({metrics, events, {}});
  REQUIRE(x.failures.size() == 1);
  CHECK(x.failures[0]["cause"] == "killed");
  CHECK(x.consequences == 1);
  REQUIRE(x.metrics.at("loss").size() == 2);
  CHECK(x.metrics.at("loss")[1].value == 2.0);
  CHECK(x.last_step == 8);
  // The longest of each generation; 8 of 10 steps got ahead in the other 8 s.
  CHECK(x.seconds_paused == doctest::Approx(2.0));
  CHECK(x.seconds_redone == doctest::Approx(1.6));
  CHECK(x.goodput() == doctest::Approx(0.64));
  CHECK(summarize({}).goodput() == 1);
  // The second process of the run counts its generations anew.
  auto more = events;
  more.push_back({{"event", "started"}});
  more.push_back({{"event", "pause"}, {"generation", 2}, {"rank", 0}, {"seconds", 0.5}});
  CHECK(summarize({metrics, more, {}}).seconds_paused == doctest::Approx(2.5));
}

TEST_CASE("what the run's drivers say of their time is added up, each as it said last") {
  const auto account = [](double seconds, double productive, double regroup) {
    return json{
        {"seconds", seconds}, {"productive", productive}, {"steps_redone", 1}, {"lost", {{"regroup", regroup}}}};
  };
  const auto x = summarize({{},
                            {{{"event", "started"}},
                             {{"event", "goodput"}, {"goodput", account(60, 50, 2)}},
                             {{"event", "goodput"}, {"goodput", account(120, 100, 4)}},
                             // Killed, and started again.
                             {{"event", "started"}},
                             {{"event", "ended"}, {"goodput", account(80, 60, 1)}}},
                            {}});
  CHECK(x.told.processes == 2);
  CHECK(x.told.seconds == 200);
  CHECK(x.told.lost.at("regroup") == 5);
  CHECK(x.told.steps_redone == 2);
  CHECK(x.goodput() == doctest::Approx(0.8));
  CHECK(describe_event({{"time", "t"}, {"event", "goodput"}, {"goodput", {{"ratio", 0.875}}}}) ==
        "t  goodput            goodput 87.5 %");
}

TEST_CASE("a summary adds up where the time of each rank's steps went, and names the rank that others wait for") {
  const std::vector<json> times{
      {{"step", 8}, {"rank", 0}, {"steps", 8}, {"compute", 0.5}, {"wait", 0.25}, {"barrier", 0.125}},
      {{"step", 8}, {"rank", 1}, {"steps", 8}, {"compute", 0.75}, {"wait", 0.0}, {"barrier", 0.125}},
      {{"step", 16}, {"rank", 1}, {"steps", 8}, {"compute", 0.75}, {"wait", 0.0}, {"barrier", 0.125}}};
  auto x = summarize({{}, {}, times}).times;
  REQUIRE(x.size() == 2);
  CHECK(x.at(0).wait == 0.25);
  CHECK(x.at(1).steps == 16);
  CHECK(x.at(1).compute == 1.5);
  CHECK(x.at(1).barrier == 0.25);
  CHECK(describe_slowest(x) == "rank 1 computes 1.50 times as long as the median rank: the others wait for it");
  x[1].compute = 1.0;
  CHECK(describe_slowest(x).empty());
  x.erase(1);
  CHECK(describe_slowest(x).empty());
}

TEST_CASE("an event is one line, whatever its cause says") {
  CHECK(describe_event(
            {{"time", "t"}, {"event", "failure"}, {"cause", "it ended; its last lines:\n  a\n  b"}, {"step", 3}}) ==
        "t  failure            cause it ended; its last lines: (+ 2 lines: --json), step 3");
  CHECK(describe_event({{"time", "t"}, {"event", "ended"}, {"status", "completed"}}) ==
        "t  ended              status completed");
}

TEST_CASE("a curve shows highest and lowest, and what is not finite") {
  const std::vector<run_summary::point> points{{1, 1.0}, {2, 0.0}, {3, NAN}, {4, 0.5}};
  CHECK(sparkline(points, 10) == "█▁!▅");
  CHECK(sparkline(points, 2) == "▁!");
  CHECK(sparkline({}, 10).empty());
}
