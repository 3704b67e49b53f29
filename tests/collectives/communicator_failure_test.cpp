#include "gloo_group.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <latch>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

error error_of(const expected<void>& result) {
  return result ? error{} : result.error();
}

bool mentions(const error& x, const std::string& text) {
  return x.message.find(text) != std::string::npos;
}

/// Calls `all_reduce` until it fails; the number of elements makes messages that do not fit into socket buffers.
error reduce_until_failure(communicator& group, std::size_t elements) {
  std::vector<float> data(elements, 1.0f);
  for (;;)
    if (auto done = group.all_reduce(std::span{data}); !done)
      return done.error();
}

gloo_options options_for(std::uint32_t rank, std::uint32_t world_size) {
  gloo_options options;
  options.rank = rank_id{rank};
  options.world_size = world_size;
  options.generation = generation_id{1};
  return options;
}

} // namespace

TEST_CASE("an abort from another thread ends the waiting call and all later ones with its reason") {
  gloo_group group{3};
  const error reason{errc::aborted, "generation 2 begins"};
  // Rank 2 does not come, so ranks 0 and 1 wait in the barrier, or soon will.
  std::vector<error> seen(4);
  std::latch started{3};
  const auto wait_in_barrier = [&](std::uint32_t rank) {
    started.count_down();
    seen[rank] = error_of(group[rank].barrier());
    seen[rank + 2] = error_of(group[rank].barrier());
  };
  std::thread first{wait_in_barrier, 0}, second{wait_in_barrier, 1};
  started.arrive_and_wait();
  group[0].abort(reason);
  group[1].abort(reason);
  first.join();
  second.join();
  CHECK(seen == std::vector<error>(4, reason));
}

TEST_CASE("an abort in the middle of large transfers ends them, whatever they stand in") {
  for (std::uint32_t culprit : {0u, 1u, 2u, 3u, 0u}) {
    gloo_group group{4};
    const error reason{errc::aborted, "stop"};
    std::vector<error> seen(4);
    std::latch started{5};
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        started.count_down();
        seen[rank] = reduce_until_failure(group[rank], 1 << 18);
      });
    started.arrive_and_wait();
    group[culprit].abort(reason);
    for (auto& x : threads)
      x.join();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      INFO(seen[rank].message);
      CHECK(seen[rank].code == errc::aborted);
      CHECK((rank == culprit) == (seen[rank] == reason));
    }
  }
}

TEST_CASE("the first reason of an abort stays") {
  const auto alone = make_self_communicator(generation_id{1});
  alone->abort({errc::stopped, "first"});
  alone->abort({errc::aborted, "second"});
  CHECK(error_of(alone->barrier()) == error{errc::stopped, "first"});
}

TEST_CASE("a rank that goes away fails the others' calls, which name it, and a new group works at once") {
  for (std::uint32_t world_size : {2u, 3u, 4u, 8u}) {
    const auto gone = world_size - 1;
    {
      gloo_group group{world_size};
      for (const auto& done : group.run([](communicator& x) { return error_of(x.barrier()); }))
        REQUIRE(done == error{});
      std::latch started{static_cast<std::ptrdiff_t>(world_size)};
      std::thread leaver{[&] {
        started.arrive_and_wait();
        group.leave(gone);
      }};
      std::vector<error> seen(gone);
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 0; rank < gone; ++rank)
        threads.emplace_back([&, rank] {
          started.count_down();
          seen[rank] = reduce_until_failure(group[rank], 1 << 16);
        });
      for (auto& x : threads)
        x.join();
      leaver.join();
      for (std::uint32_t rank = 0; rank < gone; ++rank) {
        INFO(seen[rank].message);
        CHECK(seen[rank].code == errc::aborted);
        CHECK(mentions(seen[rank], "all_reduce #2 on rank " + std::to_string(rank)));
        CHECK(mentions(seen[rank], "lost rank"));
        CHECK(error_of(group[rank].barrier()) == seen[rank]);
      }
      // Somebody saw the cause and not only its consequences.
      CHECK(std::ranges::any_of(seen, [&](const error& x) { return mentions(x, std::to_string(gone)); }));
    }
    gloo_group next{world_size, std::chrono::seconds{120}, generation_id{2}};
    for (const auto& done : next.run([](communicator& x) { return error_of(x.barrier()); }))
      CHECK(done == error{});
  }
}

TEST_CASE("a rank that has passed its last barrier may leave while others are still in it") {
  for (int again = 0; again < 20; ++again) {
    gloo_group group{4};
    std::vector<error> seen(4);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        seen[rank] = error_of(group[rank].barrier());
        group.leave(rank);
      });
    for (auto& x : threads)
      x.join();
    for (const auto& x : seen)
      CHECK(x == error{});
  }
}

TEST_CASE("a deadline that passes names operation, number and missing ranks") {
  gloo_group group{3, std::chrono::milliseconds{200}};
  for (const auto& done : group.run([](communicator& x) { return error_of(x.barrier()); }))
    REQUIRE(done == error{});
  std::vector<float> data(10);
  const auto late = error_of(group[0].all_reduce(std::span{data}));
  CHECK(late.code == errc::timed_out);
  INFO(late.message);
  CHECK(mentions(late, "all_reduce #2 on rank 0 of 3, generation 1"));
  CHECK(mentions(late, "ranks 1, 2"));
  CHECK(error_of(group[0].barrier()) == late);
}

TEST_CASE("ranks in different calls wait for the deadline instead of taking each other's bytes") {
  gloo_group group{2, std::chrono::milliseconds{200}};
  const auto seen = group.run([](communicator& x) {
    std::vector<float> data(x.rank().value == 0 ? 1000 : 2000, 1.0f);
    return error_of(x.all_reduce(std::span{data}));
  });
  // The second to look may find the first gone instead.
  CHECK(std::ranges::any_of(seen, [](const error& x) { return x.code == errc::timed_out; }));
  CHECK(std::ranges::none_of(seen, [](const error& x) { return x.code == errc::none; }));
}

TEST_CASE("members of another generation or group are refused") {
  for (int what = 0; what < 3; ++what) {
    meeting place{2};
    std::vector<errc> seen(2);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        auto options = options_for(rank, 2);
        if (rank == 1 && what == 0)
          options.generation = generation_id{2};
        const auto made = make_gloo_communicator(options, [&](std::string mine) {
          auto all = place.exchange(rank, mine);
          if (what == 1)
            std::swap(all[0], all[1]);
          if (what == 2)
            all[1 - rank].pop_back();
          return expected<std::vector<std::string>>{all};
        });
        seen[rank] = made ? errc::none : made.error().code;
      });
    for (auto& x : threads)
      x.join();
    CHECK(seen == std::vector<errc>(2, errc::mismatch));
  }
}

TEST_CASE("a cancelled group ends its connecting at once") {
  std::stop_source source;
  auto options = options_for(0, 2);
  options.cancelled = source.get_token();
  options.connect_deadline = std::chrono::hours{1};
  // The peer gives its address and is never seen again.
  meeting place{2};
  std::latch peer_may_go{1};
  std::thread peer{[&] {
    auto theirs = options_for(1, 2);
    const auto made = make_gloo_communicator(theirs, [&](std::string mine) -> expected<std::vector<std::string>> {
      (void)place.exchange(1, mine);
      peer_may_go.wait();
      return fail(errc::stopped, "gone");
    });
    CHECK(!made);
  }};
  const auto made = make_gloo_communicator(options, [&](std::string mine) {
    auto all = place.exchange(0, mine);
    source.request_stop();
    return expected<std::vector<std::string>>{all};
  });
  REQUIRE(!made);
  CHECK(made.error().code == errc::aborted);
  peer_may_go.count_down();
  peer.join();
}

TEST_CASE("options that make no sense and hosts that do not exist are refused") {
  const auto code = [](const gloo_options& options) {
    const auto made = make_gloo_communicator(
        options, [](std::string mine) { return expected<std::vector<std::string>>{{std::move(mine)}}; });
    return made ? errc::none : made.error().code;
  };
  CHECK(code(options_for(0, 1)) == errc::none);
  CHECK(code(options_for(1, 1)) == errc::invalid_argument);
  CHECK(code(options_for(0, 0)) == errc::invalid_argument);
  auto options = options_for(0, 1);
  options.deadline = {};
  CHECK(code(options) == errc::invalid_argument);
  options = options_for(0, 1);
  options.host = "no-such-host.invalid";
  CHECK(code(options) == errc::unreachable);
  options.host = "192.0.2.1";
  CHECK(code(options) == errc::unreachable);
}
