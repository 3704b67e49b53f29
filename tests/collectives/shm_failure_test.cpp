#include "call_kinds.hpp"
#include "leaf_values.hpp"
#include "rank_group.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <iostream>
#include <latch>
#include <random>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

using clock = std::chrono::steady_clock;

error error_of(const expected<void>& result) {
  return result ? error{} : result.error();
}

bool mentions(const error& x, const std::string& text) {
  return x.message.find(text) != std::string::npos;
}

/// Far longer than any call here needs: a call that reaches it has hung.
constexpr auto patience = 60s;

using pools = std::vector<std::shared_ptr<shared_pool>>;

pools make_pools(std::uint32_t count) {
  pools result;
  for (std::uint32_t i = 0; i < count; ++i)
    result.push_back(value_or_throw(shared_pool::make()));
  return result;
}

void in_threads(std::uint32_t count, const std::function<void(std::uint32_t)>& f) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < count; ++rank)
    threads.emplace_back(f, rank);
  for (auto& x : threads)
    x.join();
}

/// One generation of threads that keep their pools, as processes do.
class shm_generation {
 public:
  shm_generation(const pools& memory, std::uint64_t number, std::chrono::milliseconds deadline = patience)
      : members_(memory.size()) {
    const auto world_size = static_cast<std::uint32_t>(memory.size());
    rendezvous<std::vector<int>> descriptors{world_size};
    rendezvous<int> done{world_size};
    in_threads(world_size, [&](std::uint32_t rank) {
      auto made = make_shm_communicator(
          {rank_id{rank}, world_size, generation_id{number}, deadline, memory[rank]}, [&](std::span<const int> mine) {
            auto copies = copies_of(descriptors.exchange(rank, {mine.begin(), mine.end()}), rank);
            done.exchange(rank, 0);
            return expected<std::vector<std::vector<unique_fd>>>{std::move(copies)};
          });
      if (made)
        members_[rank] = std::move(*made);
    });
    for (const auto& x : members_)
      if (!x)
        throw std::runtime_error{"no group"};
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  communicator& operator[](std::uint32_t rank) { return *members_[rank]; }
  void leave(std::uint32_t rank) { members_[rank].reset(); }

  /// What `f(communicator)` returned on every rank, in rank order.
  std::vector<error> run(const std::function<error(communicator&)>& f) {
    std::vector<error> results(size());
    in_threads(size(), [&](std::uint32_t rank) { results[rank] = f(*members_[rank]); });
    return results;
  }

 private:
  std::vector<std::unique_ptr<communicator>> members_;
};

/// Makes every kind of call once, in a new group.
void check_works(const pools& memory, std::uint64_t generation) {
  shm_generation group{memory, generation};
  for (const auto& done : group.run([](communicator& x) {
         for (const auto& kind : all_kinds())
           if (auto call = kind.make(x)(); !call)
             return call.error();
         return error{};
       }))
    CHECK(done == error{});
}

/// Makes calls of one kind until one fails, and counts the others.
error call_until_failure(communicator& group, const kind_of_call& kind, std::atomic<int>& done) {
  const auto call = kind.make(group);
  for (;; ++done)
    if (auto result = call(); !result)
      return result.error();
}

void wait_until(const std::function<bool()>& condition) {
  while (!condition())
    std::this_thread::yield();
}

} // namespace

TEST_CASE(
    "an abort in the middle of any call ends it on all ranks, and the pools are usable in a new generation at once") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::cout << "seed of the aborts: " << seed << '\n';
  std::mt19937 random{seed};
  const auto memory = make_pools(4);
  std::uint64_t generation = 0;
  auto longest = 0ns;
  for (const auto& kind : all_kinds())
    for (int again = 0; again < 3; ++again) {
      INFO(kind.name);
      {
        shm_generation group{memory, ++generation};
        const std::uint32_t culprit = random() % 4;
        const auto calls = static_cast<int>(random() % 20);
        const auto detour = random() % 20'000;
        const error reason{errc::stopped, "generation ends"};
        std::vector<error> seen(4);
        std::atomic<int> done = 0;
        std::atomic<int> ignored = 0;
        std::vector<std::thread> threads;
        for (std::uint32_t rank = 0; rank < 4; ++rank)
          threads.emplace_back(
              [&, rank] { seen[rank] = call_until_failure(group[rank], kind, rank == 0 ? done : ignored); });
        wait_until([&] { return done >= calls; });
        // Anywhere in a call, not only at its start.
        for (std::atomic<std::uint32_t> i = 0; i < detour; ++i)
          ;
        const auto begin = clock::now();
        group[culprit].abort(reason);
        for (auto& x : threads)
          x.join();
        longest = std::max<std::chrono::nanoseconds>(longest, clock::now() - begin);
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          INFO("rank ", rank, ", culprit ", culprit, ": ", seen[rank].message);
          if (rank == culprit) {
            CHECK(seen[rank] == reason);
          } else {
            CHECK(seen[rank].code == errc::aborted);
            CHECK(mentions(seen[rank], "rank " + std::to_string(culprit) + " gave up: generation ends"));
          }
          CHECK(error_of(group[rank].barrier()) == seen[rank]);
          std::vector<std::byte> bytes(4);
          CHECK(error_of(group[rank].broadcast(bytes, rank_id{0})) == seen[rank]);
          CHECK(!group[rank].record().is_under_way);
        }
      }
      if (again == 0)
        check_works(memory, ++generation);
    }
  std::cout << "from an abort to the end of all ranks' calls: at most "
            << std::chrono::duration_cast<std::chrono::microseconds>(longest).count() << " us\n";
}

TEST_CASE("an abort ends calls that wait for a rank that does not come") {
  const auto memory = make_pools(3);
  std::uint64_t generation = 0;
  for (const auto& kind : all_kinds()) {
    INFO(kind.name);
    shm_generation group{memory, ++generation};
    std::vector<error> seen(2);
    std::atomic<int> ignored = 0;
    std::thread first{[&] { seen[0] = call_until_failure(group[0], kind, ignored); }};
    std::thread second{[&] { seen[1] = call_until_failure(group[1], kind, ignored); }};
    wait_until([&] { return group[0].record().is_under_way && group[1].record().is_under_way; });
    // The aborting rank is not one of those that wait.
    group[2].abort({errc::aborted, "no more"});
    first.join();
    second.join();
    for (const auto& x : seen) {
      INFO(x.message);
      CHECK(x.code == errc::aborted);
      CHECK(mentions(x, "rank 2 gave up: no more"));
    }
  }
}

TEST_CASE("an abort ends waiting started calls, including those that have not begun") {
  const auto memory = make_pools(2);
  shm_generation group{memory, 1};
  const error reason{errc::stopped, "enough"};
  std::vector<pending_call> calls;
  for (int i = 0; i < 5; ++i)
    calls.push_back(group[0].start([&] { return group[0].barrier(); }));
  wait_until([&] { return group[0].record().is_under_way; });
  CHECK(!calls.back().is_done());
  group[0].abort(reason);
  for (const auto& call : calls)
    CHECK(error_of(call.wait()) == reason);
  // Rank 0 has reached its first barrier, but no other.
  CHECK(group[1].barrier());
  CHECK(mentions(error_of(group[1].barrier()), "rank 0 gave up: enough"));
}

TEST_CASE("a rank that leaves fails the calls that wait for it, of any kind") {
  const auto memory = make_pools(4);
  std::uint64_t generation = 0;
  for (const auto& kind : all_kinds())
    for (auto earlier : {0, 1, 3}) {
      INFO(kind.name, " after ", earlier, " barriers");
      {
        shm_generation group{memory, ++generation};
        for (int i = 0; i < earlier; ++i)
          REQUIRE(group.run([](communicator& x) { return error_of(x.barrier()); }) == std::vector<error>(4));
        std::vector<error> seen(4);
        std::latch started{4};
        in_threads(4, [&](std::uint32_t rank) {
          started.arrive_and_wait();
          std::atomic<int> ignored = 0;
          if (rank == 2)
            group.leave(rank);
          else
            seen[rank] = call_until_failure(group[rank], kind, ignored);
        });
        for (auto rank : {0u, 1u, 3u}) {
          INFO(seen[rank].message);
          CHECK(seen[rank].code == errc::aborted);
          CHECK(mentions(seen[rank], "lost rank 2 (it has left the group)"));
          CHECK(mentions(seen[rank], kind.text));
        }
      }
      if (earlier == 0)
        check_works(memory, ++generation);
    }
}

TEST_CASE("a rank that leaves after its last call does not disturb ranks that are still in it") {
  const auto memory = make_pools(4);
  std::uint64_t generation = 0;
  for (const auto& kind : all_kinds())
    for (int again = 0; again < 5; ++again) {
      INFO(kind.name);
      shm_generation group{memory, ++generation};
      std::vector<error> seen(4);
      in_threads(4, [&](std::uint32_t rank) {
        seen[rank] = error_of(kind.make(group[rank])());
        group.leave(rank);
      });
      CHECK(seen == std::vector<error>(4));
    }
}

TEST_CASE("an expired deadline names operation, number, the missing rank and its last call") {
  const auto memory = make_pools(4);
  std::uint64_t generation = 0;
  for (const auto& kind : all_kinds())
    for (std::uint32_t missing : {0u, 3u}) {
      INFO(kind.name, ", missing ", missing);
      {
        shm_generation group{memory, ++generation};
        REQUIRE(group.run([](communicator& x) { return error_of(x.barrier()); }) == std::vector<error>(4));
        const auto seen = group.run([&](communicator& x) {
          std::atomic<int> ignored = 0;
          x.set_deadline(300ms);
          return x.rank().value == missing ? error{} : call_until_failure(x, kind, ignored);
        });
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          if (rank == missing)
            continue;
          INFO(seen[rank].message);
          // The rank whose deadline expires first notifies the others.
          CHECK((seen[rank].code == errc::timed_out || seen[rank].code == errc::aborted));
          CHECK(mentions(seen[rank], kind.text + " #"));
          CHECK(mentions(seen[rank], "within 300 ms"));
          // Only the next rank in the ring waits for the missing one itself.
          if (kind.text != "receive")
            CHECK(mentions(seen[rank], "rank " + std::to_string(missing) + " (last in barrier #1"));
        }
        CHECK(std::ranges::any_of(seen, [](const error& x) { return x.code == errc::timed_out; }));
      }
      if (missing == 0)
        check_works(memory, ++generation);
    }
}

TEST_CASE("a receive without a message names its peer when the deadline expires") {
  const auto memory = make_pools(2);
  shm_generation group{memory, 1, 300ms};
  REQUIRE(group.run([](communicator& x) { return error_of(x.barrier()); }) == std::vector<error>(2));
  std::vector<std::byte> bytes(100);
  const auto late = error_of(group[1].receive(rank_id{0}, bytes));
  INFO(late.message);
  CHECK(late.code == errc::timed_out);
  CHECK(mentions(late, "receive #1 (100 bytes, from rank 0) on rank 1 of 2"));
  CHECK(mentions(late, "nothing came from rank 0 (last in barrier #1 (0 bytes))"));
}

TEST_CASE("a send to a rank that takes nothing waits when too many messages are pending, and ends at its deadline") {
  const auto memory = make_pools(2);
  shm_generation group{memory, 1, 300ms};
  std::vector<std::byte> bytes(100);
  auto sent = 0;
  auto late = error{};
  for (; late == error{}; ++sent)
    late = error_of(group[0].send(rank_id{1}, bytes));
  INFO(late.message);
  CHECK(late.code == errc::timed_out);
  CHECK(sent > 10);
  CHECK(mentions(late, "send #" + std::to_string(sent) + " (100 bytes, to rank 1)"));
  CHECK(mentions(late, "rank 1 (no call yet)"));
}

TEST_CASE("more messages than fit into a channel arrive in order while the receiver takes them") {
  const auto memory = make_pools(2);
  shm_generation group{memory, 1};
  auto in_order = true;
  const auto seen = group.run([&](communicator& x) -> error {
    for (std::uint32_t i = 0; i < 1000; ++i) {
      std::vector<std::uint32_t> data(1 + i % 50, x.rank().value == 0 ? i : 0);
      const auto bytes = std::as_writable_bytes(std::span{data});
      if (auto done = x.rank().value == 0 ? x.send(rank_id{1}, bytes) : x.receive(rank_id{0}, bytes); !done)
        return done.error();
      if (x.rank().value == 1)
        in_order = in_order && data.back() == i;
    }
    return {};
  });
  CHECK(seen == std::vector<error>(2));
  CHECK(in_order);
}

// -- calls that do not fit together ----------------------------------------------------------------------------------

namespace {

using call = std::function<error(communicator&)>;

struct misfit {
  std::string of_others;
  std::string of_odd;
  call others, odd;
};

call reduces(std::size_t elements, reduce_op op = reduce_op::sum) {
  return [=](communicator& x) {
    std::vector<float> data(elements, 1.0f);
    return error_of(x.all_reduce(std::span{data}, op));
  };
}

call scatters(dtype type, reduce_op op) {
  return [=](communicator& x) {
    std::vector<std::byte> in(std::size_t{8000} * x.world_size()), out(8000);
    return error_of(x.reduce_scatter(type, op, in, out));
  };
}

call broadcasts(std::uint32_t root, std::size_t elements = 8) {
  return [=](communicator& x) {
    std::vector<std::uint32_t> data(elements, x.rank().value);
    return error_of(x.broadcast(std::span{data}, rank_id{root}));
  };
}

call gathers(std::size_t bytes) {
  return [=](communicator& x) {
    std::vector<std::byte> in(bytes), out(bytes * x.world_size());
    return error_of(x.all_gather(in, out));
  };
}

call enters_barrier(std::size_t words = 0) {
  return [=](communicator& x) {
    std::vector<std::uint64_t> data(words);
    return error_of(x.barrier(data));
  };
}

call reduces_leaves(const bucket_layout& layout, std::uint32_t shards, std::uint64_t divisor = 1,
                    bool is_reversed = false) {
  return [=](communicator& x) {
    auto ownership = even_ownership(shards, x.world_size());
    if (is_reversed)
      std::ranges::reverse(ownership);
    auto sums = value_or_throw(leaf_accumulator::make(layout, shards));
    sums.begin(ownership[x.rank().value]);
    sums.end();
    const auto result = value_or_throw(x.make_bucket(layout));
    return error_of(x.reduce_leaves(layout, shards, ownership, sums.partials(), *result, divisor));
  };
}

/// Both, one after the other.
call in_turn(const call& first, const call& second) {
  return [=](communicator& x) {
    auto done = first(x);
    return done == error{} ? second(x) : done;
  };
}

call receives_from(std::uint32_t peer, std::size_t bytes) {
  return [=](communicator& x) {
    std::vector<std::byte> data(bytes);
    return error_of(x.receive(rank_id{peer}, data));
  };
}

std::vector<misfit> misfits() {
  const bucket_layout small{{{dtype::f32, 100}}}, other{{{dtype::i64, 50}, {dtype::f32, 0}}};
  const bucket_layout large{{{dtype::f32, 100'000}}}, other_large{{{dtype::i64, 50'000}}};
  return {
      {"all_reduce #2", "barrier #2", reduces(100), enters_barrier()},
      {"all_reduce #2", "all_gather #2", reduces(100'000), gathers(400'000)},
      {"barrier #2", "broadcast #2", enters_barrier(), in_turn(broadcasts(0), enters_barrier())},
      {"all_to_all #2", "all_gather #2",
       [](communicator& x) {
         std::vector<std::byte> in(std::size_t{32} * x.world_size()), out(std::size_t{32} * x.world_size());
         return error_of(x.all_to_all(in, out));
       },
       gathers(32)},
      {"400 bytes", "800 bytes", reduces(100), reduces(200)},
      {"4000000 bytes", "4000004 bytes", reduces(1'000'000), reduces(1'000'001)},
      {"4096 bytes", "4100 bytes", reduces(1024), reduces(1025)},
      {"all_gather #2 (100 bytes)", "all_gather #2 (96 bytes)", gathers(100), gathers(96)},
      {"barrier #2 (0 bytes)", "barrier #2 (8 bytes)", enters_barrier(), enters_barrier(1)},
      {"barrier #2 (8 bytes)", "barrier #2 (80 bytes)", enters_barrier(1), enters_barrier(10)},
      {"sum of f32", "sum of i32", reduces(100),
       [](communicator& x) {
         std::vector<std::int32_t> data(100);
         return error_of(x.all_reduce(std::span{data}));
       }},
      {"sum of f32", "max of f32", reduces(100), reduces(100, reduce_op::max)},
      {"sum of f32", "max of f32", reduces(100'000), reduces(100'000, reduce_op::max)},
      {"sum of f32", "sum of i32", scatters(dtype::f32, reduce_op::sum), scatters(dtype::i32, reduce_op::sum)},
      {"sum of f32", "min of f32", scatters(dtype::f32, reduce_op::sum), scatters(dtype::f32, reduce_op::min)},
      {"another layout", "reduce_leaves #2", reduces_leaves(small, 8), reduces_leaves(other, 8)},
      {"another layout", "reduce_leaves #2", reduces_leaves(large, 8), reduces_leaves(other_large, 8)},
      {"another layout", "reduce_leaves #2", reduces_leaves(large, 8), reduces_leaves(large, 16)},
      {"ownership or divisor", "reduce_leaves #2", reduces_leaves(large, 8, 1), reduces_leaves(large, 8, 2)},
      {"ownership or divisor", "reduce_leaves #2", reduces_leaves(small, 8, 1, false),
       reduces_leaves(small, 8, 1, true)},
      // Not every rank waits in the wrong call: the mismatch is found in the next one.
      {"broadcast #2", "all_gather #2", in_turn(broadcasts(0), enters_barrier()), gathers(32)},
      {"all_gather #2 (100 bytes)", "all_gather #2 (0 bytes)", gathers(100), in_turn(gathers(0), enters_barrier())},
      {"broadcast #2 (32 bytes", "broadcast #2 (64 bytes", in_turn(broadcasts(1, 8), enters_barrier()),
       in_turn(broadcasts(1, 16), enters_barrier())},
      {"root 0", "root 1", in_turn(broadcasts(0), enters_barrier()), in_turn(broadcasts(1), enters_barrier())},
      {"400 bytes", "all_reduce #2 (sum of f32, 0 bytes)", reduces(100), in_turn(reduces(0), reduces(100))},
      {"all_gather #2 (32 bytes)", "broadcast #2", in_turn(gathers(32), enters_barrier()),
       in_turn(broadcasts(1), enters_barrier())},
  };
} // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): it loses track of what std::function owns

} // namespace

TEST_CASE("a rank that makes another call than the others is named on every rank, and so are both calls") {
  std::uint64_t generation = 0;
  for (std::uint32_t world_size : {2u, 4u}) {
    const auto memory = make_pools(world_size);
    for (const auto& what : misfits())
      for (auto odd : {world_size - 1, 1u}) {
        INFO(what.of_others << " and " << what.of_odd << " on " << world_size << " ranks, odd " << odd);
        {
          shm_generation group{memory, ++generation, 20s};
          REQUIRE(group.run(enters_barrier()) == std::vector<error>(world_size));
          const auto seen =
              group.run([&](communicator& x) { return x.rank().value == odd ? what.odd(x) : what.others(x); });
          for (const auto& x : seen) {
            INFO(x.message);
            CHECK(x.code == errc::mismatch);
            CHECK(mentions(x, "rank " + std::to_string(odd) + " calls"));
            CHECK(mentions(x, what.of_others));
            CHECK(mentions(x, what.of_odd));
          }
          CHECK(group.run(enters_barrier()) == seen);
        }
        shm_generation next{memory, ++generation};
        CHECK(next.run(reduces(100'000)) == std::vector<error>(world_size));
      }
  }
}

TEST_CASE("a rank that receives from one that waits for it in a collective call is named, and so are both calls") {
  for (std::uint32_t world_size : {2u, 4u}) {
    const auto memory = make_pools(world_size);
    std::uint64_t generation = 0;
    for (const auto& [name, others] : std::vector<std::pair<std::string, call>>{
             {"barrier #2", enters_barrier()}, {"all_reduce #2", reduces(100'000)}, {"all_gather #2", gathers(100)}}) {
      INFO(name, " on ", world_size, " ranks");
      shm_generation group{memory, ++generation, 20s};
      REQUIRE(group.run(enters_barrier()) == std::vector<error>(world_size));
      const auto seen =
          group.run([&](communicator& x) { return x.rank().value == 1 ? receives_from(0, 64)(x) : others(x); });
      for (const auto& x : seen) {
        INFO(x.message);
        CHECK(x.code == errc::mismatch);
        CHECK(mentions(x, name));
        CHECK(mentions(x, "receive #1 (64 bytes, from rank 0)"));
      }
    }
  }
}

TEST_CASE("a message of another size than its receive is named on every rank") {
  const auto memory = make_pools(3);
  shm_generation group{memory, 1, 20s};
  const auto seen = group.run([](communicator& x) -> error {
    std::vector<std::byte> bytes(64);
    if (x.rank().value == 1)
      return receives_from(0, 32)(x);
    if (x.rank().value == 0)
      if (auto sent = x.send(rank_id{1}, bytes); !sent)
        return sent.error();
    return error_of(x.barrier());
  });
  for (const auto& x : seen) {
    INFO(x.message);
    CHECK(x.code == errc::mismatch);
    CHECK(mentions(x, "send #1 (64 bytes, to rank 1)"));
    CHECK(mentions(x, "receive #1 (32 bytes, from rank 0)"));
  }
}

TEST_CASE("messages and collective calls that match are no mismatch, whichever rank waits") {
  const auto memory = make_pools(4);
  shm_generation group{memory, 1, 20s};
  std::vector<error> seen(4);
  std::latch may_go{1};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      auto& x = group[rank];
      // Rank 3 sends and arrives later. Rank 0 has sent its broadcast and waits for rank 3's message while ranks 1 and
      // 2 are in the next barrier. Rank 1 has a message for rank 0 that is not received before the end.
      const auto all = in_turn(broadcasts(0), enters_barrier());
      if (rank == 3) {
        may_go.wait();
        std::vector<std::byte> bytes(64);
        seen[rank] = error_of(x.send(rank_id{0}, bytes));
        if (seen[rank] == error{})
          seen[rank] = all(x);
      } else if (rank == 0) {
        seen[rank] =
            in_turn(in_turn(broadcasts(0), receives_from(3, 64)), in_turn(enters_barrier(), receives_from(1, 8)))(x);
      } else if (rank == 1) {
        std::vector<std::byte> bytes(8);
        seen[rank] = error_of(x.send(rank_id{0}, bytes));
        if (seen[rank] == error{})
          seen[rank] = all(x);
      } else {
        seen[rank] = all(x);
      }
    });
  // They wait long enough to have checked for mismatches.
  const auto is_waiting = [&](std::uint32_t rank) {
    const auto record = group[rank].record();
    return record.is_under_way && record.duration > 100ms;
  };
  wait_until([&] { return is_waiting(0) && is_waiting(1) && is_waiting(2); });
  may_go.count_down();
  for (auto& x : threads)
    x.join();
  for (const auto& x : seen)
    CHECK(x == error{});
}

// -- what stays ------------------------------------------------------------------------------------------------------

TEST_CASE("results stay unchanged after the peers, or this rank, have left, failed or continued") {
  const bucket_layout layout{{{dtype::f32, 50'000}, {dtype::f16, 100}}};
  const auto wanted = reference_root(layout, 8);
  for (auto end : {"leave", "abort", "go on"}) {
    INFO(end);
    const auto memory = make_pools(3);
    std::vector<std::unique_ptr<reduced_bucket>> results(3);
    {
      shm_generation group{memory, 1};
      const auto ownership = even_ownership(8, 3);
      in_threads(3, [&](std::uint32_t rank) {
        auto sums = value_or_throw(leaf_accumulator::make(layout, 8, group[rank].memory()));
        sums.begin(ownership[rank]);
        for (auto shard = ownership[rank].first; shard < ownership[rank].last; ++shard)
          add_shard(layout, shard, sums.next(shard_id{shard}));
        sums.end();
        results[rank] = value_or_throw(group[rank].make_bucket(layout));
        if (!group[rank].reduce_leaves(layout, 8, ownership, sums.partials(), *results[rank]))
          results[rank].reset();
      });
      for (const auto& x : results)
        REQUIRE(x);
      const auto is_as_wanted = [&](std::uint32_t rank) { return std::ranges::equal(results[rank]->bytes(), wanted); };
      if (end == std::string{"leave"}) {
        group.leave(1);
        results[1].reset();
        CHECK(is_as_wanted(0));
      } else if (end == std::string{"abort"}) {
        group[1].abort({errc::stopped, "ends"});
        CHECK(!group[2].barrier());
        CHECK(is_as_wanted(2));
      } else {
        // Another bucket of the same layout with other sums.
        CHECK(group.run(reduces_leaves(layout, 8)) == std::vector<error>(3));
        CHECK(is_as_wanted(1));
      }
    }
    // The communicators are gone; a new generation uses the same pools.
    check_works(memory, 2);
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      if (results[rank])
        CHECK(std::ranges::equal(results[rank]->bytes(), wanted));
  }
}

TEST_CASE("descriptors of another generation, group or order are rejected") {
  const auto memory = make_pools(2);
  for (auto what : {"generation", "order", "fewer", "size", "nothing"}) {
    INFO(what);
    rendezvous<std::vector<int>> descriptors{2};
    rendezvous<int> done{2};
    std::vector<errc> seen(2);
    in_threads(2, [&](std::uint32_t rank) {
      shm_options options{rank_id{rank}, 2, generation_id{7}, patience, memory[rank]};
      if (what == std::string{"generation"} && rank == 1)
        options.generation = generation_id{8};
      const auto made = make_shm_communicator(options, [&](std::span<const int> mine) {
        auto copies = copies_of(descriptors.exchange(rank, {mine.begin(), mine.end()}), rank);
        done.exchange(rank, 0);
        if (what == std::string{"order"})
          std::swap(copies[1 - rank][0], copies[1 - rank][1]);
        if (what == std::string{"fewer"})
          copies[1 - rank].pop_back();
        if (what == std::string{"size"})
          copies.emplace_back();
        if (what == std::string{"nothing"})
          copies[1 - rank][0].reset();
        return expected<std::vector<std::vector<unique_fd>>>{std::move(copies)};
      });
      seen[rank] = made ? errc::none : made.error().code;
    });
    CHECK(seen == std::vector<errc>(2, errc::mismatch));
  }
  const auto failing = make_shm_communicator({rank_id{0}, 2, generation_id{1}, patience, memory[0]},
                                             [](std::span<const int>) -> expected<std::vector<std::vector<unique_fd>>> {
                                               return fail(errc::stopped, "no exchange");
                                             });
  REQUIRE(!failing);
  CHECK(failing.error() == error{errc::stopped, "no exchange"});
}

TEST_CASE("invalid options are rejected before anything is exchanged") {
  const auto memory = make_pools(1);
  const auto code = [](const shm_options& options) {
    const auto made =
        make_shm_communicator(options, [](std::span<const int>) -> expected<std::vector<std::vector<unique_fd>>> {
          throw std::logic_error{"exchanged"};
        });
    return made ? errc::none : made.error().code;
  };
  CHECK(code({rank_id{0}, 0, generation_id{1}, patience, memory[0]}) == errc::invalid_argument);
  CHECK(code({rank_id{2}, 2, generation_id{1}, patience, memory[0]}) == errc::invalid_argument);
  CHECK(code({rank_id{0}, 257, generation_id{1}, patience, memory[0]}) == errc::invalid_argument);
  CHECK(code({rank_id{0}, 2, generation_id{1}, 0ms, memory[0]}) == errc::invalid_argument);
  CHECK(code({rank_id{0}, 2, generation_id{1}, patience, nullptr}) == errc::invalid_argument);
}
