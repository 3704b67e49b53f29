#include <troupe/actors/decisions/device_ledger.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto ours = run_id{"01"};
const auto theirs = run_id{"02"};

using names = std::vector<std::string>;

names taken(device_ledger& ledger, std::uint32_t worker, double gpus, const run_id& run = ours) {
  auto result = ledger.take(run, worker_id{worker}, gpus);
  REQUIRE(result);
  return *result;
}

} // namespace

TEST_CASE("a fraction of a GPU has capacity for as many as its inverse says, whole ones for none beside") {
  CHECK(workers_on_gpus(0.25, 1) == 4);
  CHECK(workers_on_gpus(0.1, 2) == 20);
  CHECK(workers_on_gpus(1.0 / 3, 1) == 3);
  CHECK(workers_on_gpus(0.6, 3) == 3);
  CHECK(workers_on_gpus(1, 3) == 3);
  CHECK(workers_on_gpus(2, 3) == 1);
  CHECK(gpus_for_workers(0.25, 4) == 1);
  CHECK(gpus_for_workers(0.25, 5) == 2);
  CHECK(gpus_for_workers(2, 3) == 6);
}

TEST_CASE("workers with whole GPUs have devices of their own, and give them back") {
  device_ledger ledger{{"0", "1", "GPU-77"}};
  CHECK(taken(ledger, 0, 1) == names{"0"});
  CHECK(taken(ledger, 1, 2) == names{"1", "GPU-77"});
  CHECK_FALSE(ledger.take(ours, {2}, 1));
  ledger.give_back(ours, {0});
  CHECK(taken(ledger, 2, 1) == names{"0"});
  ledger.give_back(ours, {1});
  CHECK_FALSE(ledger.take(ours, {3}, 3));
  CHECK(taken(ledger, 3, 2) == names{"1", "GPU-77"});
}

TEST_CASE("workers with fractions go where the least is taken, until all is") {
  device_ledger ledger{{"4", "5"}};
  CHECK(taken(ledger, 0, 0.5) == names{"4"});
  CHECK(taken(ledger, 1, 0.5) == names{"5"});
  CHECK(taken(ledger, 2, 0.5) == names{"4"});
  CHECK(taken(ledger, 3, 0.5) == names{"5"});
  auto full = ledger.take(ours, {4}, 0.5);
  REQUIRE_FALSE(full);
  CHECK(full.error().code == errc::unsatisfiable);
  CHECK(full.error().message ==
        "no capacity for a worker with 0.5 GPU on this node's 2 GPUs (4: worker 0, worker 2; 5: worker 1, worker 3)");
  ledger.give_back(ours, {2});
  CHECK(taken(ledger, 4, 0.5) == names{"4"});
}

TEST_CASE("thirds of a GPU fill it") {
  device_ledger ledger{{"0"}};
  for (std::uint32_t worker = 0; worker < 3; ++worker)
    CHECK(taken(ledger, worker, 1.0 / 3) == names{"0"});
  CHECK_FALSE(ledger.take(ours, {3}, 1.0 / 3));
}

TEST_CASE("runs share no device") {
  device_ledger ledger{{"0", "1"}};
  CHECK(taken(ledger, 0, 0.25) == names{"0"});
  CHECK(ledger.open_to(ours) == 2);
  CHECK(ledger.open_to(theirs) == 1);
  CHECK(taken(ledger, 0, 0.25, theirs) == names{"1"});
  CHECK(taken(ledger, 1, 0.25, theirs) == names{"1"});
  CHECK(ledger.open_to(ours) == 1);
  auto reason = ledger.take(theirs, {2}, 1);
  REQUIRE_FALSE(reason);
  CHECK(reason.error().message.find("0: worker 0 of another run; 1: worker 0, worker 1") != std::string::npos);
}

TEST_CASE("asking again gives the same, and taking nothing takes nothing") {
  device_ledger ledger{{"0"}};
  CHECK(taken(ledger, 0, 1) == names{"0"});
  CHECK(taken(ledger, 0, 1) == names{"0"});
  CHECK(taken(ledger, 1, 0).empty());
  ledger.give_back(ours, {1});
  ledger.give_back(theirs, {0});
  CHECK(ledger.open_to(theirs) == 0);
}

TEST_CASE("however workers come and go, a device is never overdrawn, and no capacity is denied that there is") {
  constexpr auto seed = 20261121u;
  MESSAGE("seed ", seed);
  auto engine = std::mt19937{seed};
  auto random = [&engine](std::uint32_t n) { return static_cast<std::uint32_t>(engine() % n); };
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    names devices;
    for (auto n = 1 + random(4); n > 0; --n)
      devices.push_back("d" + std::to_string(devices.size()));
    device_ledger ledger{devices};
    // Workers of a run all take the same.
    constexpr double sizes[] = {0.25, 0.5, 1.0 / 3, 1, 2};
    auto each = std::map<run_id, double>{{ours, sizes[random(5)]}, {theirs, sizes[random(5)]}};
    std::map<std::pair<run_id, std::uint32_t>, names> held;
    for (std::uint32_t turn = 0; turn < 40; ++turn) {
      const auto& run = random(2) == 0 ? ours : theirs;
      if (!held.empty() && random(3) == 0) {
        auto who = std::next(held.begin(), random(static_cast<std::uint32_t>(held.size())));
        ledger.give_back(who->first.first, {who->first.second});
        held.erase(who);
        continue;
      }
      auto mine = std::ranges::count_if(held, [&](const auto& x) { return x.first.first == run; });
      auto capacity = workers_on_gpus(each[run], ledger.open_to(run));
      auto result = ledger.take(run, {turn}, each[run]);
      CHECK(result.has_value() == (static_cast<std::uint32_t>(mine) < capacity));
      if (result)
        held.insert({{run, turn}, *result});
    }
    for (const auto& device : devices) {
      auto sum = 0.0;
      std::set<run_id> runs;
      for (const auto& [who, what] : held)
        if (std::ranges::find(what, device) != what.end()) {
          sum += std::min(each[who.first], 1.0);
          runs.insert(who.first);
        }
      CHECK(sum <= 1 + 1e-6);
      CHECK(runs.size() <= 1);
    }
  }
}
