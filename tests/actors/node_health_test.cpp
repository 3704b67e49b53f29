#include <troupe/actors/decisions/node_health.hpp>

#include <doctest/doctest.h>

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = run_time{} + 1h;

node_health after_deaths(int count) {
  node_health result;
  for (auto i = 0; i < count; ++i)
    result.note_death(start);
  return result;
}

} // namespace

TEST_CASE("a node on which one or two workers die takes more at once") {
  CHECK(node_health{}.most_more(start) == node_health::any_number);
  CHECK(after_deaths(2).most_more(start) == node_health::any_number);
}

TEST_CASE("a node on which three workers die has a pause, then takes one at a time, and is trusted when it lives") {
  const auto node = after_deaths(3);
  CHECK(node.pause() == 5s);
  CHECK(node.most_more(start) == 0);
  CHECK(node.most_more(start + 4999ms) == 0);
  CHECK(node.most_more(start + 5s) == 1);
  CHECK(node.most_more(start + 35s) == 1);
  CHECK(node.most_more(start + 36s) == node_health::any_number);
}

TEST_CASE("each further death doubles the pause, up to five minutes") {
  CHECK(after_deaths(4).pause() == 10s);
  CHECK(after_deaths(8).pause() == 160s);
  CHECK(after_deaths(9).pause() == 300s);
  CHECK(after_deaths(1'000'000).pause() == 300s);
}

TEST_CASE("deaths that are far apart are accidents") {
  node_health node;
  for (auto i = 0; i < 10; ++i) {
    node.note_death(start + i * 31s);
    CHECK(node.deaths() == 1);
  }
  // One that comes after a long pause is still in time.
  auto tried = after_deaths(9);
  tried.note_death(start + 329s);
  CHECK(tried.deaths() == 10);
  tried.note_death(start + 329s + 331s);
  CHECK(tried.deaths() == 1);
}

TEST_CASE("a node that is cut off takes no workers until its pause is over, which is said once") {
  auto node = node_health{};
  CHECK(node.takes_workers());
  CHECK_FALSE(node.end_cut(start));
  node.note_cut(start);
  CHECK(node.pause() == 5s);
  CHECK_FALSE(node.takes_workers());
  CHECK_FALSE(node.end_cut(start + 4999ms));
  CHECK(node.end_cut(start + 5s));
  CHECK(node.takes_workers());
  CHECK(node.most_more(start + 5s) == 1);
  CHECK_FALSE(node.end_cut(start + 6s));
  node.note_cut(start + 8s);
  CHECK(node.pause() == 10s);
  CHECK_FALSE(node.takes_workers());
}
