#include "small_model.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <latch>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("replicas that differ are found, with tensor and rank") {
  auto config = settings{};
  config.workers = 3;
  auto check = [&](const std::string& what,
                   const std::function<void(std::uint32_t rank, std::uint64_t step, model&)>& harm) {
    auto group = session_group{config};
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      harm(ctx.rank(), 0, mine);
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        harm(ctx.rank(), step.number(), mine);
      });
    });
    auto found = std::ranges::find(finished, errc::mismatch, [](const worker_finished& x) { return x.reason.code; });
    REQUIRE(found != finished.end());
    CAPTURE(found->reason.message);
    CHECK(contains(found->reason.message, what));
    CHECK(contains(found->reason.message, "differs from rank 0's"));
    for (const auto& each : finished) {
      CHECK(each.reason.code != errc::none);
      CHECK(each.step.value < config.steps);
      CHECK(each.state_sha256.empty());
    }
  };
  check(": tensor 'weights' on rank 1.",
        [](std::uint32_t rank, std::uint64_t, model& mine) { mine.weights[3] += static_cast<float>(rank % 2); });
  check("tensor 'momentum' on rank 1, 2", [](std::uint32_t rank, std::uint64_t step, model& mine) {
    if (step == 2 && rank > 0)
      mine.momentum[6] += static_cast<float>(rank);
  });
  // The last bit of the last element is enough.
  check("on rank 2", [](std::uint32_t rank, std::uint64_t step, model& mine) {
    if (step == 3 && rank == 2)
      mine.momentum[6] = std::nextafter(mine.momentum[6], 100.0f);
  });
}

TEST_CASE("a run that computes shards a second time ends with the same bits") {
  auto config = settings{};
  config.steps = 10;
  const auto whole = train_in_parts(config, 1 << 20, completion::never);
  for (auto workers : {1u, 2u, 3u})
    for (auto every : {std::uint64_t{1}, std::uint64_t{3}})
      for (auto how : {completion::never, completion::backward}) {
        INFO("workers ", workers, ", every ", every);
        config.workers = workers;
        config.verify_determinism = every;
        CHECK(train_in_parts(config, 4096, how) == whole);
      }
}

TEST_CASE("the shard that is computed twice is another rank's, with the same samples, and is one more in its list") {
  auto config = settings{};
  config.workers = 3;
  config.verify_determinism = 2;
  auto group = session_group{config};
  std::mutex mutex;
  // By step and shard: who, and of what.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<std::pair<std::uint32_t, std::uint64_t>>> computed;
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      std::uint32_t shards = 0;
      for (auto& shard : step.shards()) {
        ++shards;
        auto samples = std::accumulate(shard.samples().begin(), shard.samples().end(), std::uint64_t{0});
        auto lock = std::lock_guard{mutex};
        computed[{step.number(), shard.id().value}].emplace_back(ctx.rank(), samples);
      }
      CHECK(shards == step.shards().size());
      mine.apply(step.all_reduce(), step.number());
    });
  }),
                  config.steps);
  std::uint64_t twice = 0;
  for (const auto& [where, by] : computed) {
    CHECK(by.size() <= 2);
    if (by.size() < 2)
      continue;
    ++twice;
    CHECK(where.first % 2 == 0);
    CHECK(where.second == where.first / 2 - 1);
    CHECK(by[0].first != by[1].first);
    CHECK(by[0].second == by[1].second);
  }
  CHECK(computed.size() == config.steps * config.shards);
  CHECK(twice == config.steps / 2);
}

TEST_CASE("a gradient that depends on the rank is found, with tensor, ranks, shard and step") {
  auto config = settings{};
  config.workers = 3;
  auto body = [](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.name_gradient({{"inner", 0, 5}, {"outer", 5, 2}});
    ctx.for_each_step(plan_with(24), [&](step& step) {
      for (auto& shard : step.shards()) {
        for (auto index : shard.samples())
          shard.add("loss", mine.add_gradient(data()[index], 1, shard.gradient()));
        // Nobody sees it in the sum.
        if (ctx.rank() == 2)
          shard.gradient()[6] += 0.25f;
      }
      mine.apply(step.all_reduce(), step.number());
    });
  };
  {
    auto group = session_group{config};
    check_completed(group.run(body), config.steps);
  }
  // Shards 0 and 1 are rank 0's and computed again by rank 1; the first that rank 2 computes again is shard 2.
  config.verify_determinism = 2;
  auto group = session_group{config};
  for (const auto& each : group.run(body)) {
    CAPTURE(each.reason.message);
    // The first to say so may cut off the others.
    CHECK((each.reason.code == errc::mismatch || each.reason.code == errc::aborted));
    CHECK(contains(each.reason.message, "step 6, shard 2: rank 1, whose it is, and rank 2 have computed it"));
    CHECK(contains(each.reason.message, "differ in the gradient of 'outer' (1 of 2 numbers, by 0.25 at most). "));
    CHECK(each.step.value == 5);
  }
}

TEST_CASE("a lonely worker that computes differently each time is found, also in its metrics alone") {
  auto config = settings{};
  config.verify_determinism = 1;
  auto calls = 0;
  auto wrong = reason_of_body(
      [&](step& step, model& mine) {
        for (auto& shard : step.shards())
          shard.add("loss", ++calls > 20 ? calls : 1);
        mine.apply(step.all_reduce(), step.number());
      },
      config);
  CHECK(wrong.code == errc::mismatch);
  CHECK(contains(wrong.message, "step 3, shard 2: rank 0 has computed it twice"));
  CHECK(contains(wrong.message, "differ in the sums of the metrics (1 of 1 numbers, by 6 at most)"));
  CHECK(reason_of_body(ordinary_step, config) == error{});
}

TEST_CASE("a body that leaves out the shard that is to be computed again is told so") {
  auto config = settings{};
  config.verify_determinism = 1;
  auto wrong = reason_of_body(
      [](step& step, model& mine) {
        auto left = 8;
        for (auto& shard : step.shards()) {
          static_cast<void>(shard.id());
          if (--left == 0)
            break;
        }
        mine.apply(step.all_reduce(), step.number());
      },
      config);
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "did not compute shard 0 again before all_reduce"));
}

TEST_CASE("replicas whose values differ are found") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.state().values()["rank"] = ctx.rank();
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
  });
  auto found = std::ranges::find(finished, errc::mismatch, [](const worker_finished& x) { return x.reason.code; });
  REQUIRE(found != finished.end());
  CHECK(contains(found->reason.message, "step 1"));
  CHECK(contains(found->reason.message, "values() on rank 1"));
}

TEST_CASE("an exception's text, rank and step come out, and the others end as cut off") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  auto in_body = std::latch{config.workers};
  const auto& finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      // All have applied step 3 once they are in the body of step 4.
      if (step.number() == 4)
        in_body.arrive_and_wait();
      if (step.number() == 4 && ctx.rank() == 2)
        throw std::runtime_error{"cannot read line 17"};
      ordinary_step(step, mine);
    });
  });
  CHECK(finished[2].reason == error{errc::user_error, "rank 2 after step 3: cannot read line 17"});
  for (const auto& each : finished) {
    CHECK(each.step.value == 3);
    CHECK(each.state_sha256.empty());
    CHECK_FALSE(each.stopped);
  }
  for (auto rank : {0u, 1u}) {
    CHECK(finished[rank].reason.code == errc::aborted);
    CHECK(contains(finished[rank].reason.message, "rank " + std::to_string(rank) + " after step 3: "));
  }
}

TEST_CASE("what is thrown outside of steps, and is no exception at all, is told as well") {
  auto before = reason_of([](train_context&) { throw std::runtime_error{"no data"}; });
  CHECK(before == error{errc::user_error, "rank 0 before the first step: no data"});
  auto odd = reason_of([](train_context&) { throw 17; });
  CHECK(odd.code == errc::user_error);
  CHECK(contains(odd.message, "no std::exception"));
  auto own = reason_of([](train_context&) { throw exception{errc::not_found, "no file"}; });
  CHECK(own == error{errc::not_found, "rank 0 before the first step: no file"});
}

TEST_CASE("an exception before the first step ends the others, who wait for the plan") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    // All have formed the group.
    ctx.barrier();
    if (ctx.rank() == 1)
      throw std::runtime_error{"no data"};
    ctx.for_each_step(plan_with(24), [](step&) { throw std::logic_error{"entered"}; });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[1].reason.code == errc::user_error);
  CHECK(finished[2].reason.code == errc::aborted);
}

TEST_CASE("an abort ends those who wait for another rank") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  // All have applied step 2 once they are in the body of step 3.
  auto in_body = std::latch{config.workers};
  std::promise<void> gate;
  auto opened = gate.get_future();
  const auto& finished = group.run(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(24), [&](step& step) {
          if (step.number() == 3)
            in_body.count_down();
          if (step.number() == 3 && ctx.rank() == 0)
            opened.wait();
          ordinary_step(step, mine);
        });
      },
      [&] {
        in_body.wait();
        group.abort({errc::stale_generation, "an older one"}, generation_id{2});
        group.abort({errc::aborted, "the run is ending: a node is lost"});
        // Only they: rank 0 is still computing.
        group.wait_for_finished(2);
        gate.set_value();
      });
  for (const auto& each : finished) {
    CHECK(each.reason.code == errc::aborted);
    CHECK(each.step.value == 2);
  }
  // The others may have seen its connections go before they heard why.
  CHECK(contains(finished[0].reason.message, "a node is lost"));
}

TEST_CASE("an abort before the training begins keeps it from beginning") {
  for (std::uint32_t workers : {1u, 2u}) {
    auto config = settings{};
    config.workers = workers;
    auto group = session_group{config};
    group.abort({errc::aborted, "the run is ending"});
    for (const auto& each : group.run([](train_context&) { throw std::logic_error{"entered"}; }))
      CHECK(each.reason.code == errc::aborted);
    CHECK(group.driver().exchanges_ == 0);
  }
}

TEST_CASE("an abort of a lonely worker ends it at its next step") {
  auto config = settings{};
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 6)
        group.abort({errc::aborted, "the run is ending: so it is"});
      ordinary_step(step, mine);
    });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(contains(finished[0].reason.message, "so it is"));
  CHECK(finished[0].step.value == 5);
}

TEST_CASE("aborts at any moment end all ranks") {
  auto config = settings{};
  config.workers = 3;
  config.steps = 100'000;
  for (std::uint64_t step_of_abort = 1; step_of_abort <= 8; ++step_of_abort) {
    auto group = session_group{config};
    std::promise<void> reached;
    const auto& finished = group.run(
        [&](train_context& ctx) {
          auto mine = model{ctx.seed()};
          track(ctx, mine);
          ctx.for_each_step(plan_with(24), [&](step& step) {
            if (step.number() == step_of_abort && ctx.rank() == step_of_abort % 3)
              reached.set_value();
            ordinary_step(step, mine);
          });
        },
        [&] {
          // From here on the workers run: the abort falls somewhere into a step.
          reached.get_future().wait();
          group.abort({errc::aborted, "the run is ending"});
        });
    auto applied = [](const worker_finished& x) { return x.step.value; };
    auto [least, most] = std::ranges::minmax(finished, {}, applied);
    CHECK(most.step.value - least.step.value <= 1);
    for (const auto& each : finished)
      CHECK(each.reason.code == errc::aborted);
  }
}

} // namespace

} // namespace troupe
