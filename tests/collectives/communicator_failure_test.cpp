#include "tcp_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <doctest/doctest.h>
#include <functional>
#include <latch>
#include <sys/resource.h>

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

/// Calls `all_reduce` until it fails. The number of elements makes messages that do not fit into socket buffers.
error reduce_until_failure(communicator& group, std::size_t elements) {
  std::vector<float> data(elements, 1.0f);
  for (;;)
    if (auto done = group.all_reduce(std::span{data}); !done)
      return done.error();
}

error reduce(communicator& group, std::size_t elements, reduce_op op = reduce_op::sum) {
  std::vector<float> data(elements, 1.0f);
  return error_of(group.all_reduce(std::span{data}, op));
}

error reduce_fast(communicator& group, const bucket_layout& layout) {
  const auto bucket = group.make_bucket(layout);
  const std::vector<std::byte> mine(layout.size_bytes());
  return error_of(group.all_reduce_fast(layout, mine, **bucket));
}

tcp_options options_for(std::uint32_t rank, std::uint32_t world_size) {
  tcp_options options;
  options.rank = rank_id{rank};
  options.world_size = world_size;
  options.generation = generation_id{1};
  return options;
}

} // namespace

TEST_CASE("an abort from another thread ends the waiting call and all later ones with its reason") {
  tcp_group group{3};
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
  CHECK(seen[0] == reason);
  CHECK(seen[2] == reason);
  // Rank 1 may notice that rank 0 has gone before it is aborted itself.
  INFO(seen[1].message);
  CHECK((seen[1] == reason || mentions(seen[1], "lost rank 0")));
  CHECK(seen[3] == seen[1]);
}

TEST_CASE("an abort in the middle of large transfers ends them, whatever they wait for") {
  for (std::uint32_t culprit : {0u, 1u, 2u, 3u, 0u}) {
    tcp_group group{4};
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

TEST_CASE("the first reason of an abort wins") {
  const auto alone = make_self_communicator(generation_id{1});
  alone->abort({errc::stopped, "first"});
  alone->abort({errc::aborted, "second"});
  CHECK(error_of(alone->barrier()) == error{errc::stopped, "first"});
}

TEST_CASE("a lost rank fails the others' calls, which name it, and a new group works at once") {
  for (std::uint32_t world_size : {2u, 3u, 4u, 8u}) {
    const auto gone = world_size - 1;
    {
      tcp_group group{world_size};
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
      // At least one rank saw the cause and not only its consequences.
      CHECK(std::ranges::any_of(seen, [&](const error& x) { return mentions(x, std::to_string(gone)); }));
    }
    tcp_group next{world_size, std::chrono::seconds{120}, generation_id{2}};
    for (const auto& done : next.run([](communicator& x) { return error_of(x.barrier()); }))
      CHECK(done == error{});
  }
}

TEST_CASE("a rank may leave after its last barrier while others are still in it") {
  for (int again = 0; again < 20; ++again) {
    tcp_group group{4};
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

TEST_CASE("an expired deadline names operation, number and missing ranks") {
  tcp_group group{3, std::chrono::milliseconds{200}};
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

TEST_CASE("a rank that makes another call than the others is named on every rank, and so are both calls") {
  using call = std::function<error(communicator&)>;
  struct scenario {
    const char* of_others;
    const char* of_odd;
    call others, odd;
  };
  const auto broadcast_from = [](std::uint32_t root) {
    return [root](communicator& x) {
      std::vector<std::uint32_t> data(8, x.rank().value);
      return error_of(x.broadcast(std::span{data}, rank_id{root}));
    };
  };
  const std::vector<scenario> scenarios{
      {"all_reduce #2", "barrier #2", [](communicator& x) { return reduce(x, 100); },
       [](communicator& x) { return error_of(x.barrier()); }},
      {"400 bytes", "800 bytes", [](communicator& x) { return reduce(x, 100); },
       [](communicator& x) { return reduce(x, 200); }},
      {"4000000 bytes", "4000004 bytes", [](communicator& x) { return reduce(x, 1'000'000); },
       [](communicator& x) { return reduce(x, 1'000'001); }},
      {"sum of f32", "sum of i32", [](communicator& x) { return reduce(x, 100); },
       [](communicator& x) {
         std::vector<std::int32_t> data(100);
         return error_of(x.all_reduce(std::span{data}));
       }},
      {"sum of f32", "max of f32", [](communicator& x) { return reduce(x, 100); },
       [](communicator& x) { return reduce(x, 100, reduce_op::max); }},
      {"root 0", "root 1", broadcast_from(0), broadcast_from(1)},
      {"all_reduce_fast #2", "another layout",
       [](communicator& x) {
         return reduce_fast(x, bucket_layout{{{dtype::f32, 100}, {dtype::f64, 50}}});
       },
       [](communicator& x) {
         return reduce_fast(x, bucket_layout{{{dtype::f64, 50}, {dtype::f32, 100}}});
       }},
      // This rank's wrong call has ended, and it is in a later one.
      {"400 bytes", "all_reduce #2 (sum of f32, 0 bytes)", [](communicator& x) { return reduce(x, 100); },
       [](communicator& x) {
         const auto done = reduce(x, 0);
         return done.code == errc::none ? reduce(x, 100) : done;
       }},
  };
  for (std::uint32_t world_size : {2u, 4u})
    for (const auto& what : scenarios) {
      tcp_group group{world_size, std::chrono::seconds{60}};
      for (const auto& done : group.run([](communicator& x) { return error_of(x.barrier()); }))
        REQUIRE(done == error{});
      const auto odd = world_size - 1;
      // In a broadcast, a rank far from the odd one may succeed.
      const auto seen = group.run([&](communicator& x) {
        const auto done = x.rank().value == odd ? what.odd(x) : what.others(x);
        return done.code == errc::none ? error_of(x.barrier()) : done;
      });
      INFO(std::string{what.of_others} << " and " << std::string{what.of_odd} << " on " << world_size << " ranks");
      for (const auto& x : seen) {
        INFO(x.message);
        CHECK(x.code == errc::mismatch);
        CHECK(mentions(x, "rank " + std::to_string(odd) + " calls"));
        CHECK(mentions(x, what.of_others));
        CHECK(mentions(x, what.of_odd));
      }
      CHECK(group.run([](communicator& x) { return error_of(x.barrier()); }) == seen);
    }
}

TEST_CASE("a rank outside of any call reports a mismatch that only it can know") {
  tcp_group group{3, std::chrono::seconds{60}};
  // Rank 2 has ended this call and does something else.
  REQUIRE(reduce(group[2], 0) == error{});
  std::vector<error> seen(2);
  std::thread other{[&] { seen[1] = reduce(group[1], 100); }};
  seen[0] = reduce(group[0], 100);
  other.join();
  for (const auto& x : seen) {
    INFO(x.message);
    CHECK(x.code == errc::mismatch);
    CHECK(mentions(x, "rank 2 calls all_reduce #1 (sum of f32, 0 bytes)"));
  }
  const auto later = error_of(group[2].barrier());
  CHECK(later.code == errc::mismatch);
  CHECK(mentions(later, "all_reduce #1 (sum of f32, 400 bytes)"));
}

/// Large enough that a send waits for its receiver.
TEST_CASE("mismatched sends and receives are named on both sides, and the third rank loses both peers") {
  std::vector<std::byte> data(1'000'000), received(1'000'000);
  const std::span bytes{data};
  const std::array<std::function<expected<void>(communicator&)>, 3> of_second{
      [&](communicator& x) { return x.receive(rank_id{0}, std::span{received}.first(32)); },
      [&](communicator& x) { return x.send(rank_id{0}, bytes); },
      [&](communicator& x) { return x.barrier(); },
  };
  for (const auto& second : of_second) {
    tcp_group group{3, std::chrono::seconds{60}};
    const auto seen = group.run([&](communicator& x) -> error {
      switch (x.rank().value) {
      case 0:
        return error_of(x.send(rank_id{1}, bytes));
      case 1:
        return error_of(second(x));
      default:
        return error_of(x.barrier());
      }
    });
    for (const auto& x : seen) {
      INFO(x.message);
      CHECK(x.code == errc::mismatch);
      CHECK(mentions(x, "send #1 (1000000 bytes, to rank 1)"));
    }
  }
}

TEST_CASE("sizes with equal short hashes are still a mismatch") {
  constexpr std::size_t a_fibonacci_number = 832040;
  for (std::size_t size_bytes : {64, 1000, 4096, 40000}) {
    tcp_group group{2, std::chrono::seconds{60}};
    std::vector<std::byte> data(size_bytes + a_fibonacci_number);
    const auto seen = group.run([&](communicator& x) {
      return error_of(x.rank().value == 0 ? x.send(rank_id{1}, data)
                                          : x.receive(rank_id{0}, std::span{data}.first(size_bytes)));
    });
    for (const auto& x : seen)
      CHECK(x.code == errc::mismatch);
  }
}

TEST_CASE("long calls that match are no mismatch, whichever rank waits") {
  tcp_group group{4, std::chrono::seconds{60}};
  std::array<std::latch, 3> turns{std::latch{1}, std::latch{1}, std::latch{1}};
  const auto has_heard_of_all = [](const communicator& x) {
    const auto record = x.record();
    return record.is_under_way &&
           std::ranges::all_of(record.peers, [](const auto& y) { return y.last_call.kind != call_kind::none; });
  };
  const auto wait_for_words = [&](communicator& x) {
    while (!has_heard_of_all(x))
      std::this_thread::yield();
  };
  std::vector<error> seen(4);
  std::vector<std::thread> threads;
  std::array<std::array<std::byte, 16>, 4> data{};
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      auto& x = group[rank];
      auto& failure = seen[rank];
      failure = error_of(x.barrier());
      // Rank 3 sends while the others are in a broadcast that does not need it yet, and joins them later.
      if (rank == 0)
        turns[0].wait();
      if (rank == 3 && failure.code == errc::none)
        failure = error_of(x.send(rank_id{0}, data[rank]));
      if (failure.code == errc::none)
        failure = error_of(x.broadcast(std::span<std::byte>{data[rank]}, rank_id{0}));
      if (rank == 0 && failure.code == errc::none)
        failure = error_of(x.receive(rank_id{3}, data[rank]));
      if (rank == 3)
        turns[1].wait();
      if (failure.code == errc::none)
        failure = error_of(x.barrier());
    });
  // Ranks 1 and 2 wait for the broadcast and rank 3 in its send; then ranks 0 to 2 in the barrier.
  wait_for_words(group[1]);
  wait_for_words(group[3]);
  turns[0].count_down();
  const auto knows_that_others_wait = [&] {
    const auto record = group[0].record();
    return record.call.sequence == 3 && record.peers.size() == 3 && record.peers[0].last_call.sequence == 3 &&
           record.peers[1].last_call.sequence == 3;
  };
  while (!knows_that_others_wait())
    std::this_thread::yield();
  turns[1].count_down();
  for (auto& x : threads)
    x.join();
  CHECK(seen == std::vector<error>(4));
}

TEST_CASE("an expired deadline reports the state of each missing rank, and so does the record before") {
  tcp_group group{4};
  for (const auto& done : group.run([](communicator& x) { return error_of(x.barrier()); }))
    REQUIRE(done == error{});
  CHECK(!group[0].record().is_under_way);
  group[0].set_deadline(std::chrono::seconds{2});
  // Rank 1 computes, rank 2 waits for a message from rank 1, rank 3 has arrived.
  std::vector<error> seen(4);
  std::array<std::byte, 32> data{};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { seen[2] = error_of(group[2].receive(rank_id{1}, data)); });
  threads.emplace_back([&] { seen[3] = reduce(group[3], 10'000); });
  while (!group[2].record().is_under_way || !group[3].record().is_under_way)
    std::this_thread::yield();
  std::atomic<bool> is_over = false;
  threads.emplace_back([&] {
    seen[0] = reduce(group[0], 10'000);
    is_over = true;
  });
  flight_record record;
  const auto is_told = [&record](std::size_t i) { return record.peers[i].last_call.kind != call_kind::none; };
  do {
    std::this_thread::yield();
    record = group[0].record();
  } while (!is_over && (record.peers.size() != 3 || !is_told(0) || !is_told(1) || !is_told(2)));
  REQUIRE(record.peers.size() == 3);
  CHECK(record.transport == "tcp");
  CHECK(record.call.kind == call_kind::all_reduce);
  CHECK(record.is_under_way);
  CHECK(record.duration > std::chrono::nanoseconds{0});
  CHECK(!record.peers[0].arrived);
  CHECK(record.peers[0].last_call.kind == call_kind::barrier);
  CHECK(!record.peers[1].arrived);
  CHECK(record.peers[1].last_call.kind == call_kind::receive);
  CHECK(record.peers[2].arrived);
  threads[2].join();
  group[2].abort({errc::stopped, "enough"});
  threads[0].join();
  threads[1].join();
  INFO(seen[0].message);
  CHECK(seen[0].code == errc::timed_out);
  CHECK(mentions(seen[0], "all_reduce #2 on rank 0 of 4, generation 1: no message from or to ranks 1, 2"));
  CHECK(mentions(seen[0], "rank 1 has made no call since barrier #1"));
  CHECK(mentions(seen[0], "rank 2 has been in receive #1 (32 bytes, from rank 1) for"));
  CHECK(seen[3].code == errc::aborted);
  record = group[0].record();
  CHECK(!record.is_under_way);
  CHECK(record.call.kind == call_kind::all_reduce);
}

TEST_CASE("members of another generation or group are rejected") {
  for (int what = 0; what < 3; ++what) {
    rendezvous<std::string> place{2};
    std::vector<errc> seen(2);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        auto options = options_for(rank, 2);
        if (rank == 1 && what == 0)
          options.generation = generation_id{2};
        const auto made = make_tcp_communicator(options, [&](const std::string& mine) {
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

TEST_CASE("a cancelled group stops connecting at once") {
  std::stop_source source;
  auto options = options_for(0, 2);
  options.cancelled = source.get_token();
  options.connect_deadline = std::chrono::hours{1};
  // The peer publishes its address and disappears.
  rendezvous<std::string> place{2};
  std::latch peer_may_go{1};
  std::thread peer{[&] {
    auto theirs = options_for(1, 2);
    const auto made = make_tcp_communicator(theirs, [&](const std::string& mine) -> expected<std::vector<std::string>> {
      (void)place.exchange(1, mine);
      peer_may_go.wait();
      return fail(errc::stopped, "gone");
    });
    CHECK(!made);
  }};
  const auto made = make_tcp_communicator(options, [&](const std::string& mine) {
    auto all = place.exchange(0, mine);
    source.request_stop();
    return expected<std::vector<std::string>>{all};
  });
  REQUIRE(!made);
  CHECK(made.error().code == errc::aborted);
  peer_may_go.count_down();
  peer.join();
}

TEST_CASE("members that give up while all connect do not crash the others") {
  constexpr std::uint32_t world_size = 8;
  for (int again = 0; again < 12; ++again) {
    rendezvous<std::string> place{world_size};
    std::stop_source source;
    std::vector<errc> seen(world_size);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      threads.emplace_back([&, rank] {
        auto options = options_for(rank, world_size);
        options.cancelled = source.get_token();
        const auto made = make_tcp_communicator(options, [&](std::string mine) -> expected<std::vector<std::string>> {
          auto all = place.exchange(rank, std::move(mine));
          if (rank != 0)
            return all;
          source.request_stop();
          return fail(errc::stopped, "gone");
        });
        seen[rank] = made ? errc::none : made.error().code;
      });
    for (auto& x : threads)
      x.join();
    CHECK(seen[0] == errc::stopped);
    for (std::uint32_t rank = 1; rank < world_size; ++rank)
      CHECK((seen[rank] == errc::aborted || seen[rank] == errc::unreachable));
  }
}

TEST_CASE("a group with more connections than the process may have is refused before it forms") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  // Without a limit there is nothing to refuse.
  if (before.rlim_max > 1 << 24)
    return;
  auto options = options_for(0, static_cast<std::uint32_t>(before.rlim_max));
  const auto made = make_tcp_communicator(options, [](const std::string&) -> expected<std::vector<std::string>> {
    FAIL("it forms");
    return std::vector<std::string>{};
  });
  REQUIRE(!made);
  CHECK(made.error().code == errc::unsatisfiable);
  CHECK(made.error().message.find(std::to_string(before.rlim_max)) != std::string::npos);
  // One that fits raises the limit.
  auto lower = before;
  lower.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
  const auto formed = make_tcp_communicator(
      options_for(0, 1), [](std::string mine) { return expected<std::vector<std::string>>{{std::move(mine)}}; });
  CHECK(formed);
  rlimit after{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_cur >= 256);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("invalid options and unknown hosts are rejected") {
  const auto code = [](const tcp_options& options) {
    const auto made = make_tcp_communicator(
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
