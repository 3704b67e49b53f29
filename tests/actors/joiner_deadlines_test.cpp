#include <troupe/actors/decisions/joiner_deadlines.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = run_time{} + 1h;

worker_table table_of(const std::vector<worker_standing>& standings) {
  worker_table result;
  for (std::uint32_t i = 0; i < standings.size(); ++i) {
    result.add({{i}, {i}, 0, i, 1}, {}, {});
    result.find({i})->stands = standings[i];
  }
  return result;
}

} // namespace

TEST_CASE("a joiner has limited time to join, and to reach its loop") {
  auto failure = failure_config{};
  failure.replace_after = 60s;
  const auto workers = table_of(
      {standing::started{start}, standing::preparing{{start}}, standing::preparing{}, standing::waiting{{start}}});
  CHECK(find_overdue(workers, failure, 30s, start + 30s).empty());
  const auto first = find_overdue(workers, failure, 30s, start + 31s);
  REQUIRE(first.size() == 1);
  CHECK(first[0].worker == worker_id{0});
  CHECK(first[0].reason.message.find("raise run.start_timeout") != std::string::npos);
  const auto both = find_overdue(workers, failure, 30s, start + 61s);
  REQUIRE(both.size() == 2);
  CHECK(both[1].worker == worker_id{1});
  CHECK(both[1].reason.code == errc::timed_out);
  failure.hang = hang_mode::report;
  CHECK(find_overdue(workers, failure, 30s, start + 61s).size() == 1);
}

TEST_CASE("joiners come in together, and do not wait long for others") {
  auto workers = table_of({standing::waiting{{start}}, standing::waiting{{start + 1s}}, standing::preparing{{start}}});
  CHECK(find_due(workers, start + 500ms).empty());
  CHECK(find_due(workers, start + 501ms).size() == 2);
  workers.find({2})->stands = standing::following{};
  CHECK(find_due(workers, start).size() == 2);
  auto nobody = table_of({standing::preparing{}, standing::active{}});
  CHECK(find_due(nobody, start + 1h).empty());
}
