#include <troupe/actors/decisions/staging_groups.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

/// Two members on node 0, and two joiners that wait on node 1.
worker_table four_workers() {
  worker_table result;
  for (std::uint32_t i = 0; i < 4; ++i) {
    result.add({{i}, {i}, i / 2, i % 2, 2}, {}, {});
    if (i < 2)
      result.find({i})->stands = standing::active{};
    else
      result.find({i})->stands = standing::waiting{};
  }
  return result;
}

} // namespace

TEST_CASE("a staging group has the members first, then the joiners") {
  auto workers = four_workers();
  staging_groups groups;
  CHECK_FALSE(groups.is_open(workers));
  const auto group = groups.open({4}, 1, 7, transport_mode::automatic, workers, {workers.find({2}), workers.find({3})});
  CHECK(group == stage_joiners{{{4}, {1, 1}, transport_kind::hierarchical, 1}, 7, 2, {{{2}, {2}}, {{3}, {3}}}});
  CHECK(groups.is_open(workers));
  CHECK(groups.is_current(7));
  CHECK_FALSE(groups.is_current(6));
  CHECK(history_of(workers.find({2})->stands).stagings == 1);
}

TEST_CASE("a staging group uses the configured transport where it can") {
  const auto transport_of = [](transport_mode mode, std::uint32_t joiner_node) {
    auto workers = four_workers();
    workers.find({2})->place.node = joiner_node;
    return staging_groups{}.open({4}, 1, 7, mode, workers, {workers.find({2})}).command.transport;
  };
  CHECK(transport_of(transport_mode::automatic, 0) == transport_kind::shm);
  CHECK(transport_of(transport_mode::automatic, 1) == transport_kind::hierarchical);
  CHECK(transport_of(transport_mode::tcp, 0) == transport_kind::tcp);
  CHECK(transport_of(transport_mode::shm, 1) == transport_kind::hierarchical);
  CHECK(transport_of(transport_mode::hierarchical, 0) == transport_kind::shm);
}

TEST_CASE("the followers are caught up when the last of them is") {
  auto workers = four_workers();
  staging_groups groups;
  std::ignore = groups.open({4}, 1, 7, transport_mode::automatic, workers, {workers.find({2}), workers.find({3})});
  CHECK(groups.on_caught_up(workers, *workers.find({3}), {40}).empty());
  CHECK(workers.find({3})->applied == step_id{40});
  CHECK(groups.on_caught_up(workers, *workers.find({2}), {41}).size() == 2);
  staging_groups::stop_waiting(workers);
  CHECK_FALSE(workers.find({2})->is_caught_up());
}

TEST_CASE("a follower that asks again gets its own place again, and one that leaves breaks the group") {
  auto workers = four_workers();
  staging_groups groups;
  std::ignore = groups.open({4}, 1, 7, transport_mode::automatic, workers, {workers.find({2}), workers.find({3})});
  const auto again = groups.answer_again(*workers.find({3}));
  REQUIRE(again.size() == 1);
  CHECK(std::get<stage_joiners>(again[0].what).to_answer == std::map<rank_id, worker_id>{{{3}, {3}}});
  const auto left = groups.leave(*workers.find({2}), workers.find({2})->stands);
  REQUIRE(left.size() == 1);
  CHECK(std::get<end_staging>(left[0].what).number == 7);
  CHECK(groups.leave(*workers.find({0}), workers.find({0})->stands).empty());
}
