#include <troupe/actors/decisions/worker_table.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

/// Workers of these standings, two on each node.
worker_table table_of(const std::vector<worker_standing>& standings) {
  worker_table result;
  for (std::uint32_t i = 0; i < standings.size(); ++i) {
    result.add({{i}, {i}, i / 2, i % 2, 2}, {}, {});
    result.find({i})->stands = standings[i];
  }
  return result;
}

std::vector<std::uint32_t> leaving_in(const worker_table& workers) {
  std::vector<std::uint32_t> result;
  for (const auto& [id, who] : workers)
    if (who.is_leaving())
      result.push_back(id.value);
  return result;
}

using ids = std::vector<std::uint32_t>;

} // namespace

TEST_CASE("a joiner's history survives the ways to a place, and starts with its process") {
  const auto start = run_time{} + 1h;
  CHECK(history_of(standing::started{start}).since == start);
  CHECK(history_of(standing::ready{start}).since == start);
  const auto history = joiner_history{start, 3, 2, 1};
  for (const auto& each :
       std::vector<worker_standing>{standing::preparing{history}, standing::waiting{history},
                                    standing::following{history}, standing::active{{}, {}, history}}) {
    CHECK(history_of(each).stagings == 1);
    CHECK(history_of(each).loop == 2);
  }
  CHECK(history_of(standing::finished{}).since == run_time{});
}

TEST_CASE("only a joiner on the way to its loop is watched for progress") {
  const auto start = run_time{} + 1h;
  auto workers = table_of({standing::preparing{{start, 1, 0, 0}}, standing::waiting{{start, 1, 0, 0}}});
  for (auto& [id, who] : workers)
    who.note_sign_of_life(1, start + 1s);
  CHECK(history_of(workers.find({0})->stands).since == start);
  for (auto& [id, who] : workers)
    who.note_sign_of_life(2, start + 2s);
  CHECK(history_of(workers.find({0})->stands).since == start + 2s);
  CHECK(history_of(workers.find({1})->stands).since == start);
}

TEST_CASE("former members are waited for at the end, joiners are not") {
  auto workers = table_of({standing::waiting{}, standing::dismissed{}, standing::ended{}, standing::finished{}});
  CHECK_FALSE(workers.all_members_have_ended());
  CHECK(workers.nobody_is_active());
  CHECK(workers.occupied().size() == 3);
  workers.find({3})->stands = standing::ended{ended_by::outside};
  CHECK(workers.all_members_have_ended());
  workers.find({0})->stands = standing::released{};
  CHECK_FALSE(workers.all_members_have_ended());
}

TEST_CASE("the last ranks are surplus, and stay after all when others are lost; who goes with a node does not") {
  auto workers = table_of({standing::active{}, standing::active{}, standing::active{}, standing::active{}});
  workers.find({0})->leaves = departure::with_node;
  workers.mark_surplus(1);
  CHECK(leaving_in(workers) == ids{0, 2, 3});
  CHECK(workers.staying() == 1);
  CHECK(workers.leaving() == 3);
  workers.keep_needed(2);
  CHECK(leaving_in(workers) == ids{0, 3});
  workers.keep_needed(4);
  CHECK(leaving_in(workers) == ids{0});
}

TEST_CASE("a lost node ends its processes, and says what they were") {
  auto workers = table_of({standing::active{}, standing::active{}, standing::waiting{}, standing::ended{}});
  const auto losses = workers.end_all_on(1);
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].who->place.worker == worker_id{2});
  CHECK(std::holds_alternative<standing::waiting>(losses[0].before));
  CHECK(losses[0].who->as<standing::ended>()->who == ended_by::outside);
  CHECK(workers.any_ended_by_itself());
  CHECK(workers.end_all_on(1).empty());
}

TEST_CASE("people read who is missing, and whose report is awaited") {
  auto workers = table_of(
      {standing::active{}, standing::active{{}, regroup_report{}, {}}, standing::started{}, standing::started{}});
  workers.find({0})->host = "host-0";
  CHECK(workers.missing() == "worker 2 (rank 2), worker 3 (rank 3)");
  CHECK(workers.awaited_reports() == "worker 0 (rank 0) on host-0");
  CHECK(describe_joining({workers.find({2})}) == "worker 2 (rank 2) joins");
  CHECK(describe_joining({workers.find({2}), workers.find({3})}) == "worker 2 (rank 2), worker 3 (rank 3) join");
  CHECK(count_workers(1) == "1 worker");
  CHECK(count_workers(2) == "2 workers");
}
