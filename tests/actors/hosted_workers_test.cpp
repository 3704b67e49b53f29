#include <troupe/actors/decisions/hosted_workers.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

constexpr auto begin = hosted_workers::time_point{};

std::vector<worker_launch> launches(std::initializer_list<std::uint32_t> workers) {
  std::vector<worker_launch> result;
  for (auto each : workers)
    result.push_back({worker_id{each}, {}, 0});
  return result;
}

} // namespace

TEST_CASE("an id is used once, unless its process was never started") {
  hosted_workers workers;
  CHECK(workers.check_new(launches({0, 1})));
  CHECK(workers.check_new(launches({1, 1})).error().code == errc::already_exists);
  workers.on_starting({0});
  CHECK(workers.lives({0}));
  CHECK(workers.check_new(launches({0})).error().code == errc::already_exists);
  CHECK_FALSE(workers.on_ended({0}));
  CHECK(workers.is_empty());
  CHECK(workers.check_new(launches({0})).error().code == errc::already_exists);
  workers.on_starting({1});
  workers.on_not_started({1});
  CHECK(workers.is_empty());
  CHECK(workers.check_new(launches({1})));
}

TEST_CASE("a worker is killed once, with the first reason") {
  hosted_workers workers;
  workers.on_starting({0});
  workers.on_starting({1});
  CHECK(workers.kill({0}, "it is silent", begin));
  CHECK_FALSE(workers.kill({0}, "again", begin));
  CHECK_FALSE(workers.kill({7}, "nobody", begin));
  workers.kill_all(begin);
  CHECK(workers.why_killed({0}) == "it is silent");
  CHECK(workers.was_killed({1}));
  CHECK(workers.why_killed({1}).empty());
}

TEST_CASE("a killed process that does not end is reported once, and not waited for") {
  hosted_workers workers;
  for (std::uint32_t i = 0; i < 3; ++i)
    workers.on_starting({i});
  CHECK(workers.kill({0}, "it is silent", begin));
  CHECK(workers.kill({1}, "it is silent", begin));
  CHECK(workers.take_stuck(begin + 1s, 2s, {}).empty());
  // A process that is still being started cannot be examined.
  CHECK(workers.take_stuck(begin + 2s, 2s, {worker_id{1}}) == std::vector{worker_id{0}});
  CHECK(workers.take_stuck(begin + 3s, 2s, {worker_id{1}}).empty());
  CHECK(workers.unreported() == std::vector{worker_id{1}, worker_id{2}});
  CHECK_FALSE(workers.on_ended({1}));
  CHECK_FALSE(workers.on_ended({2}));
  CHECK(workers.all_ended_or_stuck());
  CHECK_FALSE(workers.is_empty());
  CHECK(workers.on_ended({0}));
  CHECK(workers.is_empty());
}
