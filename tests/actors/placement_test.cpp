#include <troupe/actors/decisions/placement.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

node_offer offer(std::uint32_t cpus, double gpus = 0) {
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
constexpr auto one_node = placement_strategy::strict_pack;
constexpr auto nodes_of_their_own = placement_strategy::strict_spread;

scaling_config ask(worker_range workers, placement_strategy strategy, resources each = {}) {
  auto result = ask(std::uint32_t{1}, strategy, each);
  result.num_workers = workers;
  return result;
}

/// A node with so many CPUs, on which so many workers of the run are.
node_capacity capacity(std::uint32_t cpus, std::uint32_t workers, bool usable = true) {
  return {{cpus, 0}, workers, usable};
}

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

TEST_CASE("workers that take a fraction of a GPU share one with as many as fit") {
  CHECK(placed(ask(4, packed, {0, 0.25}), {offer(8, 1)}) == counts{4});
  CHECK(placed(ask(5, packed, {0, 0.25}), {offer(8, 1), offer(8, 1)}) == counts{4, 1});
  CHECK(placed(ask(4, spreaded, {0, 0.5}), {offer(8, 2), offer(8, 1)}) == counts{2, 2});
  // Three times 0.3 leaves a rest that nobody gets.
  CHECK(placed(ask(6, packed, {0, 0.3}), {offer(8, 1), offer(8, 1)}) == counts{3, 3});
  CHECK(placed(ask(10, packed, {0, 0.1}), {offer(16, 1)}) == counts{10});
  CHECK(placed(ask(3, packed, {0, 1.0 / 3}), {offer(8, 1)}) == counts{3});
  auto reason = refused(ask(9, packed, {0, 0.25}), {offer(8, 2)});
  CAPTURE(reason.message);
  CHECK(says(reason.message, "9 workers with 0.25 GPU each need 3 GPUs; the nodes offer 8 CPUs and 2 GPUs"));
  CHECK(says(reason.message, "capacity for 8 workers"));
}

TEST_CASE("use_gpu without a number means one GPU for each") {
  auto request = ask(4, packed);
  request.use_gpu = true;
  CHECK(placed(request, {offer(8, 1), offer(8, 3)}) == counts{1, 3});
  auto reason = refused(request, {offer(8)});
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "4 workers with 1 GPU each need 4 GPUs; the nodes offer 8 CPUs and 0 GPUs"));
  CHECK(says(reason.message, "start one where nvidia-smi lists GPUs"));
  request.num_workers = 1;
  CHECK(says(refused(request, {offer(8)}).message, "1 worker with 1 GPU needs 1 GPU; the nodes offer"));
  request.num_workers = 4;
  request.resources_per_worker.gpus = 0.5;
  CHECK(placed(request, {offer(8, 2)}) == counts{4});
  using capacities = std::vector<node_capacity>;
  CHECK(place_more(request, capacities{{{8, 1}, 1, true}, {{8, 1}, 2, true}}, 3) == counts{0});
}

TEST_CASE("what cannot be satisfied says what is missing, and what to do") {
  auto two = std::vector{offer(4, 1), offer(4)};
  auto reason = refused(ask(4, packed, {0, 1}), two);
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "4 workers with 1 GPU each need 4 GPUs"));
  CHECK(says(reason.message, "the nodes offer 8 CPUs and 1 GPU"));
  CHECK(says(reason.message, two[0].address + ": 4 CPUs and 1 GPU"));
  CHECK(says(reason.message, "capacity for 1 worker."));
  CHECK(says(reason.message, "add nodes"));
  // Enough in all, but not on any one node.
  auto split = refused(ask(1, packed, {6, 0}), {offer(4), offer(4)});
  CHECK(says(split.message, "capacity for 0 workers"));
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

TEST_CASE("who has to share CPUs goes where it takes the least from the others") {
  CHECK(placed(ask(70, packed), {offer(4), offer(64)}) == counts{4, 66});
  CHECK(placed(ask(8, packed), {offer(0), offer(1), offer(2)}) == counts{2, 2, 4});
}

TEST_CASE("strictly packed workers are on one node, or nowhere") {
  CHECK(placed(ask(3, one_node), {offer(2), offer(4), offer(8)}) == counts{0, 3, 0});
  // Where no node has CPUs enough, they share those of the first.
  CHECK(placed(ask(9, one_node), {offer(2), offer(4)}) == counts{9, 0});
  CHECK(placed(ask(2, one_node, {3, 0}), {offer(4), offer(6)}) == counts{0, 2});
  auto reason = refused(ask(3, one_node, {2, 0}), {offer(4), offer(4)});
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "3 workers are to be on one node (strict_pack), and none has capacity for all"));
  CHECK(says(reason.message, "capacity for 4 workers."));
  // Too much for all nodes together is said as anywhere else.
  CHECK(says(refused(ask(5, one_node, {2, 0}), {offer(4), offer(4)}).message, "need 10 CPUs"));
}

TEST_CASE("strictly spread workers have nodes of their own, or nothing") {
  CHECK(placed(ask(2, nodes_of_their_own), {offer(8), offer(1), offer(1)}) == counts{1, 1, 0});
  CHECK(placed(ask(2, nodes_of_their_own, {2, 0}), {offer(1), offer(2), offer(4)}) == counts{0, 1, 1});
  auto reason = refused(ask(3, nodes_of_their_own), {offer(8), offer(8)});
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "3 workers are to be on nodes of their own (strict_spread)"));
  CHECK(says(reason.message, "2 nodes"));
}

TEST_CASE("a range takes the CPUs that there are, at most its greatest number and at least its least") {
  for (auto strategy : {packed, spreaded}) {
    CAPTURE(static_cast<int>(strategy));
    CHECK(placed(ask({2, 8}, strategy), {offer(2), offer(1)}) == counts{2, 1});
    CHECK(placed(ask({2, 3}, strategy), {offer(8)}) == counts{3});
    // Only the least share.
    CHECK(placed(ask({4, 8}, strategy), {offer(2)}) == counts{4});
    CHECK(placed(ask({1, 8}, strategy, {2, 0}), {offer(3), offer(4)}) == counts{1, 2});
    CHECK(refused(ask({4, 8}, strategy, {2, 0}), {offer(3), offer(4)}).code == errc::unsatisfiable);
    CHECK(place_workers(ask({2, 8}, strategy), std::vector{offer(2), offer(1)})->warning.empty());
  }
  CHECK(placed(ask({2, 5}, packed), {offer(4), offer(4)}) == counts{4, 1});
  CHECK(placed(ask({2, 5}, spreaded), {offer(4), offer(4)}) == counts{3, 2});
  auto reason = refused(ask({4, 8}, packed, {2, 0}), {offer(3), offer(4)});
  CHECK(says(reason.message, "4 workers with 2 CPUs each"));
}

TEST_CASE("a range of workers with GPUs takes the GPUs that there are, whatever CPUs they share") {
  auto request = ask(worker_range{1, 8}, packed, {0, 1});
  request.use_gpu = true;
  CHECK(placed(request, {offer(2, 4), offer(16, 1), offer(64, 0)}) == counts{4, 1, 0});
  request.resources_per_worker.gpus = 0.25;
  CHECK(placed(request, {offer(2, 1)}) == counts{4});
}

TEST_CASE("a range that is strict takes one node, or one place on each") {
  CHECK(placed(ask({2, 8}, nodes_of_their_own), {offer(4), offer(4), offer(4)}) == counts{1, 1, 1});
  CHECK(refused(ask({4, 8}, nodes_of_their_own), {offer(4), offer(4), offer(4)}).code == errc::unsatisfiable);
  CHECK(placed(ask({2, 8}, one_node), {offer(3), offer(4), offer(2)}) == counts{0, 4, 0});
  CHECK(placed(ask({2, 8}, one_node, {2, 0}), {offer(3), offer(5)}) == counts{0, 2});
  CHECK(placed(ask({4, 8}, one_node), {offer(1), offer(2)}) == counts{4, 0});
  CHECK(refused(ask({3, 8}, one_node, {2, 0}), {offer(3), offer(5)}).code == errc::unsatisfiable);
}

TEST_CASE("more workers go where there is capacity, by the same rules") {
  using capacities = std::vector<node_capacity>;
  CHECK(place_more(ask(4, packed), capacities{capacity(4, 2), capacity(4, 1)}, 1) == counts{0});
  CHECK(place_more(ask(8, packed), capacities{capacity(4, 3), capacity(4, 1)}, 3) == counts{0, 1, 1});
  CHECK(place_more(ask(8, spreaded), capacities{capacity(4, 3), capacity(4, 1)}, 3) == counts{0, 1, 1});
  CHECK(place_more(ask(8, spreaded), capacities{capacity(4, 3), capacity(4, 1)}, 1) == counts{1});
  // A fixed number is reached, if need be on shared CPUs; a range is not.
  CHECK(place_more(ask(4, packed), capacities{capacity(1, 1), capacity(2, 2)}, 1) == counts{1});
  CHECK(place_more(ask({2, 4}, packed), capacities{capacity(1, 1), capacity(2, 2)}, 1).empty());
  CHECK(place_more(ask({4, 8}, packed), capacities{capacity(1, 1), capacity(2, 2)}, 5).size() == 1);
  CHECK(place_more(ask(8, packed, {2, 0}), capacities{capacity(4, 2), capacity(4, 1)}, 3) == counts{1});
  CHECK(place_more(ask(4, packed), capacities{}, 2).empty());
  CHECK(place_more(ask(4, packed), capacities{capacity(4, 2)}, 0).empty());
}

TEST_CASE("nobody goes to a node that is lost or leaves") {
  using capacities = std::vector<node_capacity>;
  CHECK(place_more(ask(4, packed), capacities{capacity(4, 2, false), capacity(1, 1)}, 2) == counts{1, 1});
  CHECK(place_more(ask(4, spreaded), capacities{capacity(4, 0, false)}, 2).empty());
  CHECK(place_more(ask(4, one_node), capacities{capacity(4, 2, false), capacity(8, 0)}, 2).empty());
}

TEST_CASE("a node on which workers die gets no more while others have free CPUs, but some rather than nobody does") {
  using capacities = std::vector<node_capacity>;
  auto avoided = [](std::uint32_t cpus, std::uint32_t workers, std::uint32_t most_more) {
    auto result = capacity(cpus, workers);
    result.most_more = most_more;
    return result;
  };
  for (const auto& how : {packed, spreaded}) {
    CHECK(place_more(ask(4, how), capacities{avoided(4, 1, 0), capacity(4, 1)}, 2) == counts{1, 1});
    // It may try one.
    CHECK(place_more(ask(8, how), capacities{avoided(4, 1, 1), capacity(4, 1)}, 4) == counts{0, 1, 1, 1});
    // Others have no free CPU.
    CHECK(place_more(ask(4, how), capacities{avoided(4, 1, 0), capacity(2, 2)}, 1) == counts{0});
    CHECK(place_more(ask(4, how), capacities{avoided(4, 3, 0), avoided(4, 0, 0)}, 1).size() == 1);
  }
  CHECK(place_more(ask(2, nodes_of_their_own), capacities{avoided(8, 0, 0), capacity(8, 0), capacity(8, 1)}, 1) ==
        counts{1});
  // The others are there already.
  CHECK(place_more(ask(4, one_node), capacities{avoided(8, 3, 0), capacity(8, 0)}, 1) == counts{0});
}

TEST_CASE("more workers that are strictly placed go beside the others, or to nodes that have none") {
  using capacities = std::vector<node_capacity>;
  CHECK(place_more(ask(4, one_node), capacities{capacity(8, 0), capacity(8, 3)}, 1) == counts{1});
  CHECK(place_more(ask(4, one_node, {2, 0}), capacities{capacity(8, 0), capacity(7, 2)}, 2) == counts{1});
  CHECK(place_more(ask({2, 4}, one_node), capacities{capacity(8, 0), capacity(2, 2)}, 2).empty());
  CHECK(place_more(ask(3, nodes_of_their_own), capacities{capacity(8, 1), capacity(8, 0), capacity(8, 1)}, 2) ==
        counts{1});
}

TEST_CASE("whatever is asked for, no node gets more than its limits, and nobody is left out while there is capacity") {
  constexpr auto seed = 20260301u;
  MESSAGE("seed ", seed);
  auto engine = std::mt19937{seed};
  auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 3000; ++round) {
    CAPTURE(round);
    auto strategy = static_cast<placement_strategy>(1 + random() % 4);
    auto least = 1 + random() % 6;
    auto most = least + (random() % 2) * (random() % 6);
    auto each = resources{random() % 3, 0};
    std::vector<node_capacity> nodes;
    for (auto n = 1 + random() % 4; n > 0; --n)
      nodes.push_back(capacity(random() % 6, strategy == one_node || strategy == nodes_of_their_own ? 0 : random() % 3,
                               random() % 5 != 0));
    auto request = ask({least, most}, strategy, each);
    auto count = random() % 8;
    auto placed = place_more(request, nodes, count);
    CHECK(placed.size() <= count);
    auto after = counts(nodes.size());
    for (auto node : placed) {
      CHECK(nodes[node].usable);
      ++after[node];
    }
    auto used = std::ranges::count_if(after, [](auto n) { return n > 0; });
    if (strategy == one_node)
      CHECK(used <= 1);
    if (strategy == nodes_of_their_own)
      CHECK(std::ranges::all_of(after, [](auto n) { return n <= 1; }));
    for (std::size_t node = 0; node < nodes.size(); ++node)
      if (each.cpus > 0 && after[node] > 0)
        CHECK((nodes[node].workers + after[node]) * each.cpus <= nodes[node].capacity.cpus);
    // A fixed number that reserves nothing always finds a place beside others.
    if (each.cpus == 0 && least == most && (strategy == packed || strategy == spreaded))
      CHECK(placed.size() == (std::ranges::any_of(nodes, &node_capacity::usable) ? count : 0));
  }
}
