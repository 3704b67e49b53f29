#include <troupe/actors/placement.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

node_offer offer(std::uint32_t cpus, std::uint32_t gpus = 0) {
  static auto port = 4000;
  return {"host", "10.0.0.1:" + std::to_string(port++), 1, {cpus, gpus}};
}

scaling_config ask(std::uint32_t workers, placement_strategy strategy, resources each = {}) {
  scaling_config result;
  result.num_workers = workers;
  result.shards = 1024;
  result.placement = strategy;
  result.resources_per_worker = each;
  return result;
}

using counts = std::vector<std::uint32_t>;

/// How many workers each node gets.
counts placed(const scaling_config& request, const std::vector<node_offer>& offers) {
  auto decision = place_workers(request, offers);
  REQUIRE(decision);
  auto result = counts(offers.size());
  for (const auto& place : decision->places)
    ++result[place.node];
  return result;
}

error refused(const scaling_config& request, const std::vector<node_offer>& offers) {
  auto decision = place_workers(request, offers);
  REQUIRE_FALSE(decision);
  return decision.error();
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr auto packed = placement_strategy::pack;
constexpr auto spreaded = placement_strategy::spread;

} // namespace

TEST_CASE("pack fills nodes in their order, up to their CPUs") {
  auto three = std::vector{offer(4), offer(4), offer(4)};
  CHECK(placed(ask(1, packed), three) == counts{1, 0, 0});
  CHECK(placed(ask(4, packed), three) == counts{4, 0, 0});
  CHECK(placed(ask(5, packed), three) == counts{4, 1, 0});
  CHECK(placed(ask(12, packed), three) == counts{4, 4, 4});
}

TEST_CASE("spread deals workers evenly, the first nodes first") {
  auto three = std::vector{offer(4), offer(4), offer(4)};
  CHECK(placed(ask(1, spreaded), three) == counts{1, 0, 0});
  CHECK(placed(ask(3, spreaded), three) == counts{1, 1, 1});
  CHECK(placed(ask(5, spreaded), three) == counts{2, 2, 1});
}

TEST_CASE("workers that reserve nothing share CPUs where there are too few, and a person is told") {
  auto two = std::vector{offer(1), offer(2)};
  auto decision = place_workers(ask(5, packed), two);
  REQUIRE(decision);
  CHECK(placed(ask(5, packed), two) == counts{2, 3});
  CHECK(says(decision->warning, "2 workers share 1 CPU on " + two[0].address));
  CHECK(says(decision->warning, "3 workers share 2 CPUs on " + two[1].address));
  CHECK(place_workers(ask(3, packed), two)->warning.empty());
}

TEST_CASE("a node without CPUs can host workers that reserve none") {
  CHECK(placed(ask(2, packed), {offer(0)}) == counts{2});
}

TEST_CASE("reserved CPUs and GPUs are not shared") {
  CHECK(placed(ask(3, packed, {2, 0}), {offer(5), offer(4)}) == counts{2, 1});
  CHECK(placed(ask(3, spreaded, {2, 0}), {offer(2), offer(8)}) == counts{1, 2});
  CHECK(placed(ask(3, packed, {0, 1}), {offer(8, 1), offer(8, 2)}) == counts{1, 2});
  CHECK(placed(ask(2, packed, {4, 1}), {offer(4, 8), offer(64, 1)}) == counts{1, 1});
}

TEST_CASE("what cannot be satisfied says what is missing, and what to do") {
  auto two = std::vector{offer(4, 1), offer(4)};
  auto reason = refused(ask(4, packed, {0, 1}), two);
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "4 workers with 1 GPU each need 4 GPUs"));
  CHECK(says(reason.message, "the nodes offer 8 CPUs and 1 GPU"));
  CHECK(says(reason.message, two[0].address + ": 4 CPUs, 1 GPU"));
  CHECK(says(reason.message, "room for 1 worker."));
  CHECK(says(reason.message, "add nodes"));
  // Enough in all, but not on any one node.
  auto split = refused(ask(1, packed, {6, 0}), {offer(4), offer(4)});
  CHECK(says(split.message, "room for 0 workers"));
  auto both = refused(ask(2, spreaded, {2, 3}), two);
  CHECK(says(both.message, "2 workers with 2 CPUs and 3 GPUs each need 4 CPUs and 6 GPUs"));
}

TEST_CASE("without nodes nothing is placed") {
  CHECK(refused(ask(1, packed), {}).code == errc::unsatisfiable);
}

TEST_CASE("ranks are dense, the workers of a node have neighbouring ones, and know their number there") {
  for (auto strategy : {packed, spreaded})
    for (std::uint32_t n : {1u, 2u, 3u, 4u, 7u, 8u, 13u}) {
      CAPTURE(n);
      auto decision = place_workers(ask(n, strategy), std::vector{offer(3), offer(1), offer(4)});
      REQUIRE(decision);
      REQUIRE(decision->places.size() == n);
      auto local = counts(3);
      for (std::uint32_t rank = 0; rank < n; ++rank) {
        const auto& place = decision->places[rank];
        CHECK(place.rank.value == rank);
        CHECK(place.worker.value == rank);
        CHECK(place.local_rank == local.at(place.node)++);
        if (rank > 0)
          CHECK(place.node >= decision->places[rank - 1].node);
      }
      for (const auto& place : decision->places)
        CHECK(place.local_world_size == local.at(place.node));
    }
}
