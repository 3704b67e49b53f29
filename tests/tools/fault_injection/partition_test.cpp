#include "scene.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <algorithm>
#include <built.hpp>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <functional>
#include <nlohmann/json.hpp>
#include <scratch_directory.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

// With TROUPE_LONG_TESTS=1 the link is not restored, and the test waits half a minute for the side without the driver
// to end on its own.

using namespace troupe;
using namespace troupe::chaos;
using namespace std::chrono_literals;

namespace {

constexpr auto patience = 60s;

/// The driver and two nodes with two workers each, in private network namespaces whose links can be cut.
struct divided_run {
  testing::scratch_directory place;
  std::vector<std::string> skipped;
  std::unique_ptr<scene> here;

  divided_run() {
    testing::write_file(place.path() / "text.txt", std::string(50'000, 'x') + "the actor sends its gradient");
    scene_options options;
    options.directory = place.path();
    options.caf_node = testing::caf_node_program();
    options.program = {testing::charlm_program(),
                       "--quiet",
                       "--text",
                       (place.path() / "text.txt").string(),
                       "--hidden",
                       "32",
                       "--embedding",
                       "16",
                       "--batch",
                       "64",
                       "--steps",
                       "1000000000",
                       "--checkpoint-every",
                       "50"};
    options.private_links = true;
    here = std::make_unique<scene>(std::move(options), skipped);
  }

  /// False, and says so, where no network namespaces can be made.
  [[nodiscard]] bool is_possible() const {
    if (here->has_links())
      return true;
    REQUIRE_FALSE(skipped.empty());
    std::printf("SKIP: %s\n", skipped.front().c_str());
    return false;
  }

  void await(const std::string& what, const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
      if (!here->driver().running() || std::chrono::steady_clock::now() > end)
        FAIL("waited for " << what << ":\n" << here->interrogate());
      std::this_thread::sleep_for(20ms);
      here->look();
    }
  }

  std::set<pid_t> workers_of(std::size_t node) {
    std::set<pid_t> result;
    for (const auto& each : here->workers())
      if (each.node == node)
        result.insert(each.pid);
    return result;
  }

  /// Returns the workers of the second node.
  std::set<pid_t> await_training() {
    await("the first steps", [this] { return here->step() > 100; });
    auto result = workers_of(1);
    REQUIRE(result.size() == 2);
    return result;
  }

  /// The newest committed checkpoint.
  serialization::manifest newest_checkpoint() {
    const auto all = value_or_throw(serialization::list_checkpoints(here->run_directory() / "checkpoints"));
    REQUIRE_FALSE(all.empty());
    return value_or_throw(serialization::checkpoint::open(all.back().path)).content();
  }
};

} // namespace

TEST_CASE("after a network partition the driver's side continues, and results of the other side do not count") {
  divided_run run;
  if (!run.is_possible())
    return;
  auto& here = *run.here;
  const auto far_side = run.await_training();
  const auto before = here.generation();
  here.cut(1);
  run.await("a generation without the far side", [&] { return here.generation() > before; });
  const auto divided = here.step();
  run.await("steps and checkpoints without the far side", [&] { return here.step() > divided + 200; });

  // After the link is restored the workers there are rejected; otherwise they notice that they are alone.
  if (std::getenv("TROUPE_LONG_TESTS") == nullptr)
    here.mend(1);
  run.await("the end of the old workers of the far side", [&] {
    return std::ranges::none_of(here.workers(), [&](const auto& each) { return far_side.contains(each.pid); });
  });
  here.look();
  const auto newest = run.newest_checkpoint();
  CHECK(newest.generation.value > before);
  here.driver().signal(SIGTERM);
  const auto status = here.driver().wait();
  INFO(here.driver().err());
  CHECK(status == testing::exit_status{143, {}});

  // The ledger shows which process committed which step: the far side none in any later generation, and none is
  // missing.
  std::uint64_t last = 0;
  auto ledger = ledger_tail{here.run_directory() / "ledger.jsonl"};
  const auto entries = ledger.read();
  std::map<std::uint32_t, std::uint64_t> last_steps;
  for (const auto& each : entries) {
    last = std::max(last, each.step);
    if (far_side.contains(static_cast<pid_t>(each.pid))) {
      CHECK(each.generation <= before);
      last_steps[each.pid] = std::max(last_steps[each.pid], each.step);
    }
  }
  const auto account_of_all = account(entries, 8, last, {last_steps.begin(), last_steps.end()});
  for (const auto& each : account_of_all.problems)
    FAIL_CHECK(each);
  // Every checkpoint is complete.
  for (const auto& each : value_or_throw(serialization::list_checkpoints(here.run_directory() / "checkpoints")))
    CHECK(value_or_throw(serialization::checkpoint::open(each.path)).verify().has_value());
}

TEST_CASE("when the hosts of workers do not reach each other one side goes on, and the other is replaced") {
  divided_run run;
  if (!run.is_possible())
    return;
  auto& here = *run.here;
  const auto far_side = run.await_training();
  const auto before = here.generation();
  here.cut_data(1);
  run.await("a generation on one side", [&] { return here.generation() > before; });
  const auto divided = here.step();
  run.await("steps on that side", [&] { return here.step() > divided + 200; });
  // Of equal sides the one with the lowest rank goes on.
  run.await("the end of the other side", [&] {
    return std::ranges::none_of(here.workers(), [&](const auto& each) { return far_side.contains(each.pid); });
  });
  // Its node gets no others as long as they could not join.
  run.await("new workers beside those that go on", [&] {
    const auto all = here.workers();
    return all.size() == 4 &&
           std::ranges::all_of(all, [&](const auto& each) { return each.node == 0 && each.step > divided; });
  });
  here.mend_data(1);
  here.driver().signal(SIGTERM);
  const auto status = here.driver().wait();
  INFO(here.driver().err());
  CHECK(status == testing::exit_status{143, {}});
  CHECK(here.driver().err().find("cannot reach each other over the data network") != std::string::npos);
  const auto result = nlohmann::json::parse(testing::read_file(here.run_directory() / "result.json"));
  CHECK(result.at("restarts") == 0);
}
