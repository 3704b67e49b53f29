#include <troupe/actors/decisions/partition.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

/// One member on each of so many nodes; node 10 has rank 0.
std::vector<member_reach> members_of(std::uint32_t count) {
  std::vector<member_reach> result;
  for (std::uint32_t rank = 0; rank < count; ++rank)
    result.push_back({10 + rank, true, {}});
  return result;
}

void cut(std::vector<member_reach>& members, std::uint32_t a, std::uint32_t b) {
  members[a].unreachable.emplace_back(b);
  members[b].unreachable.emplace_back(a);
}

using nodes = std::vector<std::uint32_t>;

} // namespace

TEST_CASE("where nothing is cut, nobody goes") {
  CHECK(choose_nodes_cut_off({}).empty());
  CHECK(choose_nodes_cut_off(members_of(1)).empty());
  CHECK(choose_nodes_cut_off(members_of(3)).empty());
}

TEST_CASE("of two equal sides the one with the lower rank stays") {
  auto members = members_of(2);
  cut(members, 0, 1);
  CHECK(choose_nodes_cut_off(members) == nodes{11});
  members = members_of(4);
  for (std::uint32_t a : {0u, 3u})
    for (std::uint32_t b : {1u, 2u})
      cut(members, a, b);
  CHECK(choose_nodes_cut_off(members) == nodes{12, 11});
}

TEST_CASE("the larger side stays") {
  auto members = members_of(5);
  for (std::uint32_t a : {0u, 1u})
    for (std::uint32_t b : {2u, 3u, 4u})
      cut(members, a, b);
  CHECK(choose_nodes_cut_off(members) == nodes{11, 10});
}

TEST_CASE("a node with more members stays") {
  auto members = members_of(3);
  members[2].node = members[1].node;
  cut(members, 0, 1);
  CHECK(choose_nodes_cut_off(members) == nodes{10});
}

TEST_CASE("the side that has the state stays, however small it is") {
  auto members = members_of(4);
  for (std::uint32_t rank : {0u, 1u, 2u})
    members[rank].has_state = false;
  for (std::uint32_t rank : {0u, 1u, 2u})
    cut(members, rank, 3);
  CHECK(choose_nodes_cut_off(members) == nodes{12, 11, 10});
}

TEST_CASE("a cut that only one side reports is none: the other may be frozen") {
  auto members = members_of(3);
  members[0].unreachable = {rank_id{1}};
  members[2].unreachable = {rank_id{1}};
  CHECK(choose_nodes_cut_off(members).empty());
  // Another member of that node has seen it, too.
  members.push_back({11, true, {rank_id{2}}});
  CHECK(choose_nodes_cut_off(members) == nodes{12});
}

TEST_CASE("a node that is cut off from two others goes, and these stay together") {
  auto members = members_of(3);
  cut(members, 0, 1);
  cut(members, 0, 2);
  CHECK(choose_nodes_cut_off(members) == nodes{10});
  members = members_of(3);
  cut(members, 0, 2);
  CHECK(choose_nodes_cut_off(members) == nodes{12});
}

TEST_CASE("members of one node are never cut off from each other") {
  auto members = members_of(2);
  members[1].node = members[0].node;
  cut(members, 0, 1);
  CHECK(choose_nodes_cut_off(members).empty());
}

TEST_CASE("ranks that are none are passed over") {
  auto members = members_of(2);
  members[0].unreachable = {rank_id{7}};
  members[1].unreachable = {rank_id{0}};
  CHECK(choose_nodes_cut_off(members).empty());
}
