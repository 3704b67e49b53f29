#include <troupe/actors/decisions/node_roster.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

/// Nodes of two CPUs: the driver's own, and others in a network that nobody vouches for.
node_roster roster_of(std::uint32_t nodes, worker_range workers = {2, 2}) {
  auto scaling = scaling_config{};
  scaling.num_workers = workers;
  scaling.resources_per_worker.cpus = 1;
  auto result =
      node_roster{{scaling, [](const std::string& address) { return address.starts_with("127."); }, 1s, 200ms}};
  for (std::uint32_t i = 0; i < nodes; ++i) {
    result.add("host-" + std::to_string(i) + ":5150");
    result[i].offer = {
        "host-" + std::to_string(i), (i == 0 ? "127.0.0." : "10.0.0.") + std::to_string(i + 1), 1, {2, 0}};
  }
  return result;
}

worker_place on_node(std::uint32_t worker, std::uint32_t node) {
  return {worker_id{worker}, rank_id{worker}, node, 0, 1};
}

const auto start = known_node::clock::time_point{} + 1h;

} // namespace

TEST_CASE("a node that is away, cut off or given up is tried again, but not too often") {
  auto nodes = roster_of(5);
  nodes[1].state = node_state::open;
  nodes[2].state = node_state::fenced;
  nodes[3].state = node_state::dialling;
  nodes[4].state = node_state::cut;
  CHECK(nodes.to_try(start) == std::vector<std::uint32_t>{0, 2, 4});
  for (auto i : {0, 2, 4})
    nodes[static_cast<std::uint32_t>(i)].tried = start;
  CHECK(nodes.to_try(start + 200ms).empty());
  CHECK(nodes.to_try(start + 201ms) == std::vector<std::uint32_t>{4});
  CHECK(nodes.to_try(start + 1s) == std::vector<std::uint32_t>{4});
  CHECK(nodes.to_try(start + 1001ms) == std::vector<std::uint32_t>{0, 2, 4});
}

TEST_CASE("a node that is named no more gets no workers, until it is named again") {
  auto nodes = roster_of(2, {1, 1});
  nodes[0].state = node_state::offered;
  nodes[0].is_wanted = false;
  CHECK(nodes.in_state(node_state::offered).empty());
  CHECK_FALSE(nodes.place(node_state::offered, {}));
  // It may still have some.
  nodes[0].state = node_state::open;
  CHECK(nodes.in_state(node_state::open) == std::vector<std::uint32_t>{0});
  nodes[0].state = node_state::offered;
  nodes[0].is_wanted = true;
  CHECK(nodes.place(node_state::offered, {}));
}

TEST_CASE("answers are awaited of nodes that were asked or are being dialled for the first time") {
  auto nodes = roster_of(2);
  CHECK_FALSE(nodes.awaits_answers());
  nodes[1].state = node_state::dialling;
  CHECK(nodes.awaits_answers());
  nodes[1].tried = start;
  CHECK_FALSE(nodes.awaits_answers());
  nodes[1].state = node_state::away;
  nodes[0].state = node_state::asked;
  CHECK(nodes.awaits_answers());
  for (auto state : {node_state::offered, node_state::opening, node_state::open, node_state::refused,
                     node_state::leaving, node_state::away, node_state::fenced}) {
    nodes[0].state = state;
    CHECK_FALSE(nodes.awaits_answers());
  }
}

TEST_CASE("places name the roster's nodes, whichever of them are asked for") {
  auto nodes = roster_of(3);
  nodes[0].state = node_state::refused;
  nodes[2].state = node_state::open;
  auto decision = nodes.place(node_state::open, worker_id{7});
  REQUIRE(decision);
  REQUIRE(decision->places.size() == 2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    CHECK(decision->places[i].node == 2);
    CHECK(decision->places[i].worker == worker_id{7 + i});
  }
  auto none = nodes.place(node_state::offered, worker_id{0});
  REQUIRE_FALSE(none);
  CHECK(none.error().code == errc::unsatisfiable);
}

TEST_CASE("places are for as many workers as the run is to have now") {
  auto nodes = roster_of(1);
  nodes[0].state = node_state::open;
  CHECK(nodes.place(node_state::open, {})->places.size() == 2);
  nodes.resize_run(1);
  CHECK(nodes.place(node_state::open, {})->places.size() == 1);
}

TEST_CASE("there is capacity on open nodes, beside those that are there") {
  auto nodes = roster_of(1);
  CHECK_FALSE(nodes.capacities({}, {})[0].usable);
  nodes[0].state = node_state::open;
  auto places = std::vector{on_node(0, 0)};
  auto capacities = nodes.capacities(places, {});
  CHECK(capacities[0].usable);
  CHECK(capacities[0].workers == 1);
  CHECK(capacities[0].capacity.cpus == 2);
}

TEST_CASE("where gradients may not leave a host, workers stay where the others are") {
  auto nodes = roster_of(3);
  for (std::uint32_t i = 0; i < 3; ++i)
    nodes[i].state = node_state::open;
  for (const auto& capacity : nodes.capacities({}, {}))
    CHECK(capacity.usable);
  auto first = std::vector{on_node(0, 1)};
  auto capacities = nodes.capacities(first, {});
  CHECK_FALSE(capacities[0].usable);
  CHECK(capacities[1].usable);
  CHECK_FALSE(capacities[2].usable);

  CHECK(nodes.check_data_plane(first, node_roster::spread::places));
  auto both = std::vector{on_node(0, 0), on_node(1, 1)};
  auto refused = nodes.check_data_plane(both, node_roster::spread::places);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::invalid_argument);
  CHECK(refused.error().message.find("10.0.0.2") != std::string::npos);
  CHECK(refused.error().message.find("--trusted-network") != std::string::npos);
}

TEST_CASE("at its start, workers of an elastic run may come to every node that has made an offer") {
  auto nodes = roster_of(2, {1, 4});
  auto places = std::vector{on_node(0, 0)};
  CHECK_FALSE(nodes.check_data_plane(places, node_roster::spread::offers));
  CHECK(nodes.check_data_plane(places, node_roster::spread::places));
  nodes[1].offer = {};
  CHECK(nodes.check_data_plane(places, node_roster::spread::offers));
}

TEST_CASE("a node that its cluster does not list is not dialled, unless its workers may live") {
  auto nodes = roster_of(3);
  nodes[1].state = node_state::fenced;
  nodes[2].state = node_state::cut;
  for (auto i : {0u, 1u, 2u})
    nodes[i].is_wanted = false;
  CHECK(nodes.to_try(start) == std::vector<std::uint32_t>{2});
  nodes[0].is_wanted = true;
  CHECK(nodes.to_try(start) == std::vector<std::uint32_t>{0, 2});
}

TEST_CASE("slots limit the workers of a node, at the start and later") {
  auto nodes = roster_of(2, {2, 2});
  for (auto i : {0u, 1u}) {
    nodes[i].state = node_state::offered;
    nodes[i].most_workers = 1;
  }
  auto placed = nodes.place(node_state::offered, {});
  REQUIRE(placed);
  CHECK(placed->places[0].node != placed->places[1].node);
  nodes[1].state = nodes[0].state = node_state::open;
  const auto capacities = nodes.capacities(std::vector{on_node(0, 0)}, start);
  auto scaling = scaling_config{};
  CHECK(place_more(scaling, capacities, 5) == std::vector<std::uint32_t>{});
  nodes[0].most_workers = 3;
  CHECK(place_more(scaling, nodes.capacities(std::vector{on_node(0, 0)}, start), 5) ==
        std::vector<std::uint32_t>{0, 0});
  nodes[0].most_workers = 1;
  nodes[0].state = nodes[1].state = node_state::offered;
  nodes.resize_run({3, 3});
  placed = nodes.place(node_state::offered, {});
  REQUIRE_FALSE(placed);
  CHECK(placed.error().message.find("at most 1 worker") != std::string::npos);
}
