#include <troupe/actors/decisions/exit_permits.hpp>

#include <doctest/doctest.h>
#include <random>

using namespace troupe;
using namespace troupe::actors;

namespace {

const run_id run{"cafe"};

exit_request asks(std::uint32_t worker) {
  return {run, {1}, {worker}, "hangs"};
}

worker_gone goes(std::uint32_t worker, std::uint32_t holders_left) {
  return {run, {worker}, holders_left};
}

exit_permits of_size(std::uint32_t world_size) {
  exit_permits table;
  table.begin({run, {1}, world_size});
  return table;
}

} // namespace

TEST_CASE("workers that hang together exit one at a time, and the last learns that it is the last") {
  auto table = of_size(3);
  CHECK(table.ask(asks(0)).value() == exit_permits::grant{{0}, {false}});
  CHECK_FALSE(table.ask(asks(2)).value());
  CHECK_FALSE(table.ask(asks(1)).value());
  // A lost generation changes nothing; each end reports how many holders of the state are left.
  table.begin({run, {2}, 0});
  CHECK(table.gone(goes(0, 2)) == exit_permits::grant{{2}, {false}});
  CHECK(table.gone(goes(2, 1)) == exit_permits::grant{{1}, {true}});
  CHECK_FALSE(table.gone(goes(1, 0)));
}

TEST_CASE("a repeated request is harmless, and so is the end of a worker without a permit") {
  auto table = of_size(4);
  CHECK(table.ask(asks(0)).value());
  CHECK(table.ask(asks(0)).value() == exit_permits::grant{{0}, {false}});
  CHECK_FALSE(table.ask(asks(1)).value());
  CHECK_FALSE(table.ask(asks(1)).value());
  CHECK_FALSE(table.gone(goes(3, 3)));
  CHECK(table.gone(goes(0, 2)) == exit_permits::grant{{1}, {false}});
  CHECK_FALSE(table.gone(goes(1, 1)));
}

TEST_CASE("a worker that dies while it waits for a permit delays nobody") {
  auto table = of_size(3);
  CHECK(table.ask(asks(0)).value());
  CHECK_FALSE(table.ask(asks(1)).value());
  CHECK_FALSE(table.ask(asks(2)).value());
  CHECK_FALSE(table.gone(goes(1, 2)));
  CHECK(table.gone(goes(0, 1)) == exit_permits::grant{{2}, {true}});
}

TEST_CASE("a withdrawn request delays nobody, whether it was granted or not") {
  auto table = of_size(4);
  CHECK(table.ask(asks(0)).value());
  CHECK_FALSE(table.ask(asks(1)).value());
  CHECK_FALSE(table.ask(asks(2)).value());
  CHECK_FALSE(table.withdraw({run, {1}}));
  CHECK(table.gone(goes(0, 3)) == exit_permits::grant{{2}, {false}});
  CHECK_FALSE(table.ask(asks(3)).value());
  CHECK(table.withdraw({run, {2}}) == exit_permits::grant{{3}, {false}});
  CHECK_FALSE(table.withdraw({run_id{"beef"}, {3}}));
  CHECK_FALSE(table.ask(asks(1)).value());
}

TEST_CASE("a generation's requests end with it, even if a worker's end or a request comes late") {
  auto table = of_size(3);
  CHECK(table.ask(asks(1)).value());
  CHECK_FALSE(table.ask(asks(0)).value());
  // All that stay have reported. Worker 1, which had the permit, has ended before its end is reported.
  table.begin({run, {2}, 2});
  CHECK_FALSE(table.gone(goes(1, 2)));
  CHECK(table.ask({run, {2}, {2}, "hangs"}).value() == exit_permits::grant{{2}, {false}});
  table.begin({run, {2}, 2});
  CHECK_FALSE(table.ask({run, {2}, {0}, "hangs"}).value());
  CHECK(table.ask(asks(0)).error().code == errc::stale_generation);
}

TEST_CASE("another run's workers get no permit, and their ends are ignored") {
  auto table = of_size(1);
  auto stranger = asks(0);
  stranger.run = run_id{"beef"};
  CHECK(table.ask(stranger).error().code == errc::stale_generation);
  CHECK(table.ask(asks(0)).value() == exit_permits::grant{{0}, {true}});
  CHECK_FALSE(table.ask(asks(1)).value());
  CHECK_FALSE(table.gone({run_id{"beef"}, {0}, 5}));
}

TEST_CASE("in any order of requests and ends, at most one permit is held, each worker gets one, and only one is last") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random{seed};
  for (int round = 0; round < 200; ++round) {
    const auto workers = 1 + random() % 6;
    auto table = of_size(workers);
    std::vector<std::uint32_t> silent;
    for (std::uint32_t i = 0; i < workers; ++i)
      silent.push_back(i);
    std::optional<worker_id> leaving;
    std::uint32_t living = workers;
    std::uint32_t left_as_last = 0;
    const auto take = [&](const std::optional<exit_permits::grant>& due) {
      if (!due)
        return;
      REQUIRE_FALSE(leaving);
      leaving = due->worker;
      CHECK(due->answer.is_last_holder == (living == 1));
      left_as_last += due->answer.is_last_holder ? 1 : 0;
    };
    while (living != 0) {
      if (!silent.empty() && (!leaving || random() % 2 == 0)) {
        const auto at = silent.begin() + static_cast<std::ptrdiff_t>(random() % silent.size());
        take(table.ask(asks(*at)).value());
        silent.erase(at);
      } else {
        REQUIRE(leaving);
        take(table.gone(goes(std::exchange(leaving, std::nullopt)->value, --living)));
      }
    }
    CHECK(left_as_last == 1);
  }
}
