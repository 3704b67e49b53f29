#include <verdict.hpp>

#include <shell.hpp>

#include <doctest/doctest.h>

#include <functional>

using namespace troupe::chaos;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// The digest of the samples in some shards of a step of the run below.
std::uint64_t digest(std::uint64_t step, std::uint32_t first, std::uint32_t last) {
  const auto order = troupe::data_order{40, 16, 8, 1};
  auto result = std::uint64_t{0};
  std::vector<std::uint64_t> samples;
  for (auto v = first; v < last; ++v) {
    order.samples_of({step}, {v}, samples);
    result = troupe::digest_of_samples(result, samples);
  }
  return result;
}

/// A correct run: one of two workers is killed in step 3 of 6 and not replaced.
evidence good() {
  evidence facts;
  facts.result = {{"status", "completed"},
                  {"steps", 6},
                  {"state_sha256", std::string(64, 'a')},
                  {"error", nullptr},
                  {"restarts", 0},
                  {"failures",
                   {{{"worker", 1},
                     {"pid", 20},
                     {"generation", 1},
                     {"code", "worker_lost"},
                     {"message", "killed"},
                     {"consequence", false}}}},
                  {"generations",
                   {{{"generation", 2},
                     {"attempt", 1},
                     {"workers", 1},
                     {"steps_redone", 1},
                     {"interrupted_step", true},
                     {"pause_seconds", 0.05}}}},
                  {"workers", {{{"worker", 0}, {"pid", 10}}, {{"worker", 1}, {"pid", 20}}}}};
  facts.undisturbed = {{"status", "completed"}, {"steps", 6}, {"state_sha256", std::string(64, 'a')}};
  facts.run = {{"shards", 8}, {"seed", 1}, {"config", {{"batch", 16}}}};
  facts.faults = {{fault_kind::kill, 10ms, 3, false, {20}, {}, false}};
  facts.workers = 2;
  facts.planned_faults = 1;
  facts.samples = 40;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    facts.ledger.push_back({step, 1, 10, 0, 4, digest(step, 0, 4)});
    facts.ledger.push_back({step, 1, 20, 4, 8, digest(step, 4, 8)});
  }
  for (std::uint64_t step = 4; step <= 6; ++step)
    facts.ledger.push_back({step, 2, 10, 0, 8, digest(step, 0, 8)});
  return facts;
}

/// The only condition that does not hold; "" if all hold, "several" if more than one does not.
std::string broken_by(const std::function<void(evidence&)>& change, answer wanted = answer::no) {
  auto facts = good();
  change(facts);
  std::string result;
  for (const auto& each : judge(facts))
    if (each.is != answer::yes) {
      CHECK_MESSAGE(each.is == wanted, each.question << ": " << each.detail);
      result = result.empty() ? each.question : "several";
    }
  return result;
}

const auto bits = std::string{"the disturbed run ends with the bits of the undisturbed one"};
const auto injected = std::string{"all planned faults were injected"};
const auto failures = std::string{"its failures are exactly the injected ones"};
const auto restarts = std::string{"no restart from a checkpoint while a survivor lived"};
const auto redone = std::string{"at most one step redone for each fault"};
const auto inside = std::string{"at least 80 % of the losses fell inside a step"};
const auto once = std::string{"the ledger has every shard of every step exactly once"};
const auto epochs = std::string{"every epoch has every sample exactly once"};

} // namespace

TEST_CASE("a correct run meets all conditions") {
  CHECK(broken_by([](evidence&) {}).empty());
}

TEST_CASE("different bits, missing bits and different numbers of steps are found") {
  CHECK(broken_by([](evidence& x) { x.result["state_sha256"] = std::string(64, 'b'); }) == bits);
  CHECK(broken_by([](evidence& x) { x.undisturbed = nullptr; }) == bits);
  CHECK(broken_by([](evidence& x) { x.undisturbed["steps"] = 5; }) == bits);
  CHECK(broken_by([](evidence& x) { x.result["state_sha256"] = x.undisturbed["state_sha256"] = ""; }) == bits);
}

TEST_CASE("a run that failed or left no result has not finished") {
  CHECK(broken_by([](evidence& x) { x.result["status"] = "failed"; }) == "the run finished");
  CHECK(broken_by([](evidence& x) { x.result["status"] = "stopped"; }).empty());
  auto facts = good();
  facts.result = nullptr;
  CHECK(judge(facts).front().is == answer::no);
  CHECK(judge(facts).front().detail == "it left no result");
}

TEST_CASE("a run fails if planned faults found no victim") {
  CHECK(broken_by([](evidence& x) { x.planned_faults = 2; }) == injected);
  CHECK(broken_by([](evidence& x) { x.planned_faults = 0; }).empty());
}

TEST_CASE("failures that were not injected, are missing or are reported twice are found") {
  CHECK(broken_by([](evidence& x) { x.result["failures"][0]["pid"] = 10; }) == failures);
  CHECK(broken_by([](evidence& x) {
          x.faults.push_back({fault_kind::kill, 20ms, 5, false, {10}, {}, false});
        }) == failures);
  CHECK(broken_by([](evidence& x) { x.result["failures"].push_back(x.result["failures"][0]); }) == failures);
}

TEST_CASE("successive processes with the same pid count separately") {
  CHECK(broken_by([](evidence& x) {
          x.faults.push_back({fault_kind::kill, 20ms, 5, false, {20}, {}, false});
          x.result["failures"].push_back(x.result["failures"][0]);
          x.result["failures"][1]["worker"] = 2;
        }).empty());
  CHECK(broken_by([](evidence& x) {
          x.faults.push_back({fault_kind::kill, 20ms, 5, false, {20}, {}, false});
        }) == failures);
}

TEST_CASE("a failure without a pid is attributed by its worker id") {
  CHECK(broken_by([](evidence& x) { x.result["failures"][0].erase("pid"); }).empty());
  CHECK(broken_by([](evidence& x) {
          x.result["failures"][0].erase("pid");
          x.result["failures"][0]["worker"] = 0;
        }) == failures);
}

TEST_CASE("a frozen worker may be given up, but need not be") {
  auto frozen = [](evidence& x) { x.faults[0] = {fault_kind::freeze, 10ms, 3, false, {}, {20}, false}; };
  CHECK(broken_by(frozen).empty());
  CHECK(broken_by([&](evidence& x) {
          x.faults.push_back({fault_kind::freeze, 20ms, 5, false, {}, {10}, false});
        }).empty());
}

TEST_CASE("a worker without a known pid may be lost with its node, but not otherwise") {
  auto nameless = json{{"worker", 7}, {"pid", 0}, {"code", "node_lost"}, {"message", "gone"}};
  CHECK(broken_by([&](evidence& x) { x.result["failures"].push_back(nameless); }) == failures);
  CHECK(broken_by([&](evidence& x) {
          x.result["failures"].push_back(nameless);
          x.faults[0].kind = fault_kind::kill_node;
        }).empty());
}

TEST_CASE("a restart is correct only if no worker survived") {
  CHECK(broken_by([](evidence& x) { x.result["restarts"] = 1; }) == restarts);
  CHECK(broken_by([](evidence& x) {
          x.result["restarts"] = 1;
          x.faults[0].left_none = true;
        }).empty());
}

TEST_CASE("more than one step redone for a fault is found") {
  CHECK(broken_by([](evidence& x) { x.result["generations"][0]["steps_redone"] = 2; }) == redone);
  CHECK(broken_by([](evidence& x) {
          auto next = x.result["generations"][0];
          next["generation"] = 3;
          x.result["generations"].push_back(next);
        }) == redone);
  // Two faults do not make up for two steps at once.
  CHECK(broken_by([](evidence& x) {
          x.faults.push_back({fault_kind::freeze, 20ms, 5, false, {}, {10}, false});
          x.planned_faults = 2;
          x.result["generations"][0]["steps_redone"] = 2;
        }) == redone);
  // The steps that a restart repeats depend on its checkpoint.
  CHECK(broken_by([](evidence& x) {
          x.result["generations"][0]["steps_redone"] = 90;
          x.result["generations"][0]["attempt"] = 2;
        }).empty());
}

TEST_CASE("too many losses between steps are found if there are enough losses to judge") {
  auto losses = [](int all, int between) {
    return [=](evidence& x) {
      x.result["failures"] = x.result["generations"] = json::array();
      x.faults.clear();
      x.planned_faults = 0;
      for (auto i = 1; i <= all; ++i) {
        auto pid = static_cast<std::uint32_t>(100 + i);
        x.result["failures"].push_back({{"worker", i}, {"pid", pid}, {"generation", i}});
        x.result["generations"].push_back({{"generation", i + 1}, {"workers", 1}, {"interrupted_step", i > between}});
        x.faults.push_back({fault_kind::kill, 10ms, 3, false, {pid}, {}, false});
      }
      x.ledger.clear();
      for (std::uint64_t step = 1; step <= 6; ++step)
        x.ledger.push_back({step, 1, 10, 0, 8, digest(step, 0, 8)});
    };
  };
  CHECK(broken_by(losses(20, 4)).empty());
  CHECK(broken_by(losses(20, 5)) == inside);
  CHECK(broken_by(losses(19, 5)).empty());
  CHECK(broken_by(losses(1, 1)).empty());
}

TEST_CASE("more workers than requested are found") {
  CHECK(broken_by([](evidence& x) { x.result["generations"][0]["workers"] = 3; }) ==
        "never more workers than requested");
}

TEST_CASE("a ledger with a gap is found") {
  CHECK(broken_by([](evidence& x) { x.ledger.pop_back(); }) == once);
}

TEST_CASE("a process that received other samples than those of its shards is found") {
  CHECK(broken_by([](evidence& x) { ++x.ledger[2].samples_digest; }) == epochs);
}

TEST_CASE("a condition without the necessary data is unknown") {
  CHECK(broken_by([](evidence& x) { x.result.erase("restarts"); }, answer::unknown) == restarts);
  CHECK(broken_by([](evidence& x) { x.ledger.clear(); }, answer::unknown) == once);
  CHECK(broken_by([](evidence& x) { x.samples.reset(); }, answer::not_applicable) == epochs);
  CHECK(broken_by([](evidence& x) { x.run.erase("seed"); }, answer::unknown) == epochs);
  CHECK(broken_by([](evidence& x) { x.result.erase("generations"); }, answer::unknown) == "several");
  CHECK(broken_by([](evidence& x) { x.result.erase("failures"); }, answer::unknown) == "several");
}

TEST_CASE("percentiles are by nearest rank") {
  CHECK(percentile({}, 0.5) == 0);
  CHECK(percentile({3}, 0.99) == 3);
  CHECK(percentile({4, 1, 3, 2}, 0.5) == 2);
  CHECK(percentile({4, 1, 3, 2}, 0.99) == 4);
  CHECK(percentile({4, 1, 3, 2}, 1) == 4);
}

TEST_CASE("command lines are split as a shell does, without running anything in them") {
  CHECK(split_command("charlm --text '/a b' --steps=3") ==
        std::vector<std::string>{"charlm", "--text", "/a b", "--steps=3"});
  CHECK(split_command("").empty());
  CHECK(split_command("charlm $(true)").empty());
  CHECK(split_command("charlm 'open").empty());
}

TEST_CASE("a system command returns its output only if it fails") {
  CHECK(!complaint_of({"true"}));
  CHECK(complaint_of({"false"}) == "false: failed");
  CHECK(complaint_of({"ls", "/nowhere"})->find("/nowhere") != std::string::npos);
  CHECK(complaint_of({"no-such-program"}).has_value());
}
