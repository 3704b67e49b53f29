#include <troupe/actors/decisions/run_layout.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

/// Ranks 0, 1, ... on these nodes; worker ids are ten more.
std::vector<worker_place> on_nodes(const std::vector<std::uint32_t>& nodes) {
  std::vector<worker_place> result;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank)
    result.push_back({worker_id{rank + 10}, rank_id{rank}, nodes[rank], 0, 1});
  return result;
}

const auto addresses = std::vector<std::string>{"10.0.0.1", "10.0.0.2"};

run_layout layout_of(const std::vector<std::uint32_t>& nodes, transport_mode transport = transport_mode::automatic) {
  scaling_config scaling;
  scaling.shards = 16;
  run_layout layout{scaling, transport};
  REQUIRE(layout.lay_out(on_nodes(nodes), addresses, run_layout::fallback::no));
  return layout;
}

} // namespace

TEST_CASE("a change of the transport is reported once") {
  scaling_config scaling;
  run_layout layout{scaling, transport_mode::automatic};
  CHECK(layout.lay_out(on_nodes({0, 0}), addresses, run_layout::fallback::no).value().find("shared memory") !=
        std::string::npos);
  CHECK(layout.lay_out(on_nodes({0, 0}), addresses, run_layout::fallback::no) == "");
  CHECK(layout.lay_out(on_nodes({0, 1}), addresses, run_layout::fallback::no) != "");
  // One worker needs none.
  CHECK(layout.lay_out(on_nodes({0}), addresses, run_layout::fallback::no) == "");
}

TEST_CASE("a transport that the configuration asks for is required at the start, and given up when hosts are lost") {
  scaling_config scaling;
  run_layout layout{scaling, transport_mode::shm};
  auto refused = layout.lay_out(on_nodes({0, 1}), addresses, run_layout::fallback::no);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::invalid_argument);
  CHECK(layout.lay_out(on_nodes({0, 1}), addresses, run_layout::fallback::yes));
}

TEST_CASE("a joiner's place in a staging group has the nodes of the members, then those of the joiners") {
  const auto layout = layout_of({0, 0, 1});
  const auto group = stage_joiners{{{4}, {1, 0}, transport_kind::hierarchical, 0}, 5, 3, {{{3}, {20}}, {{4}, {21}}}};
  const auto place = layout.place_of(group, {4}, "10.0.0.2");
  CHECK(place ==
        staging_place{5, {4}, {4}, 3, 2, transport_kind::hierarchical, {{0, 2}, {1, 1}, {1, 1}, {0, 1}}, "10.0.0.2"});
  const auto local = stage_joiners{{{4}, {1}, transport_kind::shm, 0}, 5, 2, {{{2}, {20}}}};
  CHECK(layout_of({1, 1}).place_of(local, {2}, "10.0.0.2").data_address == "127.0.0.1");
}

TEST_CASE("shards that do not divide well are warned of") {
  CHECK(layout_of({0, 0}).uneven_shards().empty());
  CHECK(layout_of({0, 0, 0}).uneven_shards().empty());
  CHECK(layout_of(std::vector<std::uint32_t>(9, 0)).uneven_shards().empty());
  CHECK(layout_of(std::vector<std::uint32_t>(11, 0))
            .uneven_shards()
            .starts_with("11 workers share 16 shards unevenly: they run at 72 %"));
  // What is advised suits the number of workers.
  for (const auto& [workers, advice] :
       {std::pair{5u, "such as 15 or 20"}, {7u, "such as 14 or 21"}, {11u, "such as 11 or 22"}})
    CHECK(layout_of(std::vector<std::uint32_t>(workers, 0)).uneven_shards().find(advice) != std::string::npos);
}

TEST_CASE("each node is told of its own workers") {
  auto layout = layout_of({0, 1, 1});
  CHECK(layout.uses_node(1));
  CHECK_FALSE(layout.uses_node(2));
  auto messages = layout.start_messages({"r1"}, {"--fast"}, layout.places());
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].workers.size() == 1);
  REQUIRE(messages[1].workers.size() == 2);
  CHECK(messages[1].workers[1].worker == worker_id{12});
  CHECK(messages[1].workers[1].environment.at("RANK") == "2");
  CHECK(messages[1].arguments == std::vector<std::string>{"--fast"});
}

TEST_CASE("a place says which neighbouring ranks are on one node, whoever gets it") {
  auto layout = layout_of({0, 0, 1, 0});
  const auto wanted = std::vector<node_ranks>{{0, 2}, {1, 1}, {0, 1}};
  for (const auto& place : layout.places())
    CHECK(layout.place_of(place, {1}, 1, "").nodes == wanted);
}

TEST_CASE("members are told who has joined, who compares states, and who has the evaluation") {
  auto layout = layout_of({0, 0, 0});
  form_generation next;
  next.decision.commit_point = {7};
  next.decision.evaluation_source = worker_id{11};
  next.joiners = {worker_id{12}};
  next.compared = {worker_id{10}, worker_id{12}};
  next.record.generation = {3};
  next.record.reason = "worker 12 has joined";
  auto places = layout.member_places(next);
  REQUIRE(places.size() == 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto& [worker, message] = places[rank];
    CHECK(worker == worker_id{rank + 10});
    CHECK(message.place.rank == rank_id{rank});
    CHECK(message.place.generation == generation_id{3});
    CHECK(message.place.reason == "worker 12 has joined");
    CHECK(message.commit_point == step_id{7});
    CHECK(message.evaluation_source == rank_id{1});
    CHECK(message.joiners == std::vector{rank_id{2}});
    CHECK(message.comparison == (rank == 1 ? state_comparison::nothing : state_comparison::whole));
  }
  next.compared.clear();
  for (const auto& [worker, message] : layout.member_places(next))
    CHECK(message.comparison == state_comparison::slice);
}
