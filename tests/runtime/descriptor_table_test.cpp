#include "node/descriptor_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace troupe::runtime {

namespace {

descriptor_offer offer_of(std::uint64_t generation, std::uint32_t rank, std::uint32_t world) {
  return {{{generation}}, rank, world};
}

bool is_quiet(const offer_decision& x) {
  return x.placed && x.refused.empty() && x.complete.empty();
}

std::vector<worker_id> workers_of(const std::vector<offer_refusal>& refusals) {
  std::vector<worker_id> result;
  for (const auto& each : refusals)
    result.push_back(each.worker);
  std::ranges::sort(result);
  return result;
}

using workers = std::vector<worker_id>;

} // namespace

TEST_CASE("an exchange completes with its last offer, in any order") {
  constexpr auto seed = 5u;
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  descriptor_table table;
  for (std::uint64_t generation = 1; generation <= 50; ++generation) {
    auto world = static_cast<std::uint32_t>(1 + random() % 9);
    auto order = std::vector<std::uint32_t>(world);
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::shuffle(order, random);
    // Worker 100 + r has rank r.
    for (std::uint32_t i = 0; i < world; ++i) {
      auto worker = worker_id{100 + order[i]};
      auto decision = table.offer(worker, offer_of(generation, order[i], world));
      CHECK(decision.new_group == (i == 0));
      CHECK(decision.placed);
      CHECK(decision.refused.empty());
      CHECK(table.waits(worker) == (i + 1 < world));
      REQUIRE(decision.complete.size() == (i + 1 < world ? 0 : world));
      for (std::uint32_t r = 0; r < decision.complete.size(); ++r)
        CHECK(decision.complete[r] == worker_id{100 + r});
    }
  }
}

TEST_CASE("an offer of an older generation is refused and changes nothing") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(5, 0, 2))));
  auto late = table.offer({1}, offer_of(4, 1, 2));
  CHECK_FALSE(late.placed);
  REQUIRE(late.refused.size() == 1);
  CHECK(late.refused[0].worker == worker_id{1});
  CHECK(late.refused[0].group == descriptor_group{{4}});
  CHECK(late.refused[0].reason.code == errc::stale_generation);
  CHECK(table.offer({1}, offer_of(5, 1, 2)).complete == workers{{0}, {1}});
}

TEST_CASE("an offer of a newer generation refuses the workers that wait in the older one") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(1, 0, 3))));
  CHECK(is_quiet(table.offer({1}, offer_of(1, 1, 3))));
  auto decision = table.offer({2}, offer_of(2, 0, 2));
  CHECK(decision.new_group);
  CHECK(decision.placed);
  CHECK(workers_of(decision.refused) == workers{{0}, {1}});
  for (const auto& each : decision.refused) {
    CHECK(each.group == descriptor_group{{1}});
    CHECK(each.reason.code == errc::stale_generation);
  }
  CHECK_FALSE(table.waits({0}));
  CHECK(table.offer({0}, offer_of(2, 1, 2)).complete == workers{{2}, {0}});
}

TEST_CASE("a staging group comes after its generation and before the next") {
  const auto staging = [](std::uint64_t number, std::uint32_t rank) {
    return descriptor_offer{{{1}, number}, rank, 2};
  };
  descriptor_table table;
  CHECK(table.offer({0}, offer_of(1, 0, 1)).complete == workers{{0}});
  CHECK(is_quiet(table.offer({0}, staging(7, 0))));
  // A second one, because somebody in the first was lost.
  const auto next = table.offer({0}, staging(9, 0));
  CHECK(next.new_group);
  REQUIRE(workers_of(next.refused) == workers{{0}});
  CHECK(next.refused[0].group == descriptor_group{{1}, 7});
  CHECK(next.refused[0].reason.message ==
        "staging group 7 of generation 1 is over: staging group 9 of generation 1 has "
        "begun");
  CHECK(table.offer({1}, staging(7, 1)).refused.at(0).reason.code == errc::stale_generation);
  CHECK(table.offer({1}, offer_of(1, 0, 1)).refused.at(0).reason.code == errc::stale_generation);
  CHECK(table.offer({1}, staging(9, 1)).complete == workers{{0}, {1}});
  CHECK(table.offer({1}, offer_of(2, 0, 1)).complete == workers{{1}});
}

TEST_CASE("a generation with a completed exchange refuses no worker when the next begins") {
  descriptor_table table;
  CHECK(table.offer({0}, offer_of(1, 0, 1)).complete == workers{{0}});
  CHECK(table.offer({0}, offer_of(2, 0, 1)).refused.empty());
}

TEST_CASE("two workers that claim one local rank end the exchange for all, and both are named") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({4}, offer_of(1, 0, 3))));
  CHECK(is_quiet(table.offer({5}, offer_of(1, 1, 3))));
  auto decision = table.offer({6}, offer_of(1, 1, 3));
  CHECK_FALSE(decision.placed);
  CHECK(workers_of(decision.refused) == workers{{4}, {5}, {6}});
  for (const auto& each : decision.refused) {
    CHECK(each.reason.code == errc::mismatch);
    CHECK(each.reason.message == "workers disagree about generation 1: worker 5 and worker 6 both claim local rank 1");
  }
  // Later and repeated offers get the same error.
  for (auto worker : {worker_id{7}, worker_id{4}}) {
    auto later = table.offer(worker, offer_of(1, 2, 3));
    CHECK(workers_of(later.refused) == workers{worker});
    CHECK(later.refused.at(0).reason.code == errc::mismatch);
  }
  CHECK(table.offer({4}, offer_of(2, 0, 1)).complete == workers{{4}});
}

TEST_CASE("different local world sizes end the exchange for all") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(1, 0, 2))));
  auto decision = table.offer({1}, offer_of(1, 1, 3));
  CHECK(workers_of(decision.refused) == workers{{0}, {1}});
  CHECK(decision.refused.at(0).reason.code == errc::mismatch);
  CHECK(decision.refused.at(0).reason.message.find("worker 1 counts 3") != std::string::npos);
}

TEST_CASE("a worker offers once per generation, and its offer stands") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(1, 0, 2))));
  auto again = table.offer({0}, offer_of(1, 0, 2));
  CHECK_FALSE(again.placed);
  REQUIRE(again.refused.size() == 1);
  CHECK(again.refused[0].reason.code == errc::invalid_argument);
  CHECK(table.waits({0}));
  CHECK(table.offer({1}, offer_of(1, 1, 2)).complete == workers{{0}, {1}});
  CHECK(table.offer({1}, offer_of(1, 1, 2)).refused.at(0).reason.code == errc::invalid_argument);
}

TEST_CASE("an excess worker is refused after the exchange without affecting the others") {
  descriptor_table table;
  CHECK(table.offer({0}, offer_of(1, 0, 1)).complete == workers{{0}});
  auto surplus = table.offer({1}, offer_of(1, 0, 1));
  CHECK_FALSE(surplus.placed);
  CHECK(workers_of(surplus.refused) == workers{{1}});
  CHECK(surplus.refused.at(0).reason.code == errc::mismatch);
}

TEST_CASE("a worker that leaves keeps its place open") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(1, 0, 2))));
  table.leave({0});
  CHECK_FALSE(table.waits({0}));
  CHECK(is_quiet(table.offer({1}, offer_of(1, 1, 2))));
  CHECK(table.waits({1}));
}

TEST_CASE("an invalid offer is refused and begins no group") {
  descriptor_table table;
  CHECK(is_quiet(table.offer({0}, offer_of(1, 0, 2))));
  for (const auto& wrong :
       {offer_of(0, 0, 1), offer_of(9, 0, 0), offer_of(9, 2, 2), offer_of(9, 0, max_local_world_size + 1)}) {
    auto decision = table.offer({1}, wrong);
    CHECK_FALSE(decision.new_group);
    CHECK(workers_of(decision.refused) == workers{{1}});
    CHECK(decision.refused.at(0).reason.code == errc::invalid_argument);
  }
  CHECK(table.offer({1}, offer_of(1, 1, 2)).complete == workers{{0}, {1}});
}

} // namespace troupe::runtime
