#include "small_model.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("a run ends with the bits of the definition on any number of workers") {
  for (std::uint32_t shards : {8u, 13u})
    // The second batch leaves shards without samples, the third is larger than the data.
    for (std::uint64_t batch : {24u, 5u, 70u}) {
      auto config = settings{};
      config.shards = shards;
      auto definition = reference{shards, batch, config.seed};
      auto expected = definition.train(model{config.seed}, 1, config.steps);
      auto identity = std::string{};
      for (std::uint32_t workers : {1u, 2u, 3u, 4u}) {
        CAPTURE(shards);
        CAPTURE(batch);
        CAPTURE(workers);
        config.workers = workers;
        auto group = session_group{config};
        auto result = train_on(group, config, batch);
        check_completed(result.finished, config.steps);
        for (const auto& each : result.models)
          CHECK(each == expected);
        if (identity.empty())
          identity = result.finished[0].state_sha256;
        CHECK(result.finished[0].state_sha256 == identity);
        // The losses, too, are those of the definition, on every rank.
        for (std::uint32_t rank = 0; rank < workers; ++rank) {
          std::vector<double> losses;
          for (const auto& report : group.driver().batches_)
            if (report.rank.value == rank)
              for (const auto& row : report.rows)
                losses.push_back(row.values.at("loss"));
          CHECK(losses == definition.losses);
        }
      }
    }
}

TEST_CASE("another seed, another number of shards and one more step each change the result") {
  auto identity_of = [](const settings& config) {
    auto group = session_group{config};
    return train_on(group, config, 24).finished[0].state_sha256;
  };
  auto same = settings{};
  auto seed = settings{};
  seed.seed = 2;
  auto shards = settings{};
  shards.shards = 13;
  auto steps = settings{};
  steps.steps = 13;
  CHECK(identity_of(same) == identity_of(same));
  std::set<std::string> all{identity_of(same), identity_of(seed), identity_of(shards), identity_of(steps)};
  CHECK(all.size() == 4);
}

TEST_CASE("the context says who and where its worker is") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  std::array<std::vector<std::uint64_t>, 2> seen;
  std::array<double, 2> drawn{};
  std::array<std::string, 2> texts;
  for (const auto& each : group.run([&](train_context& ctx) {
         auto rank = ctx.rank();
         seen[rank] = {rank,
                       ctx.world_size(),
                       ctx.local_rank(),
                       ctx.local_world_size(),
                       ctx.node_rank(),
                       ctx.generation(),
                       ctx.seed(),
                       ctx.steps(),
                       ctx.restored_step()};
         drawn[rank] = ctx.random("x").uniform();
         texts[rank] = ctx.run_name() + " " + ctx.device() + " " + ctx.config().dump() + " " + ctx.options().dump();
         if (ctx.run_directory() != group.checkpoints().parent_path() || ctx.stop_requested())
           throw std::logic_error{"a wrong directory, or a stop that nobody asked for"};
       }))
    CHECK(each.reason == error{});
  for (std::uint64_t rank : {0u, 1u}) {
    CHECK(seen[rank] == std::vector<std::uint64_t>{rank, 2, rank, 2, 0, 3, 1, 12, 0});
    CHECK(texts[rank] == R"(test cpu {"rate":0.5} {"verbose":true})");
    CHECK(drawn[rank] == random_stream{1, "x"}.uniform());
  }
}

TEST_CASE("a step knows its number, batch and epoch, and the last") {
  std::vector<std::uint64_t> epochs;
  std::vector<bool> last;
  CHECK(reason_of_body([&](step& step, model& mine) {
          CHECK(step.number() == epochs.size() + 1);
          CHECK(step.id().value == step.number());
          CHECK(step.batch_samples() == 24);
          CHECK(step.shards().size() == 8);
          epochs.push_back(step.epoch());
          last.push_back(step.last());
          ordinary_step(step, mine);
        }) == error{});
  CHECK(epochs == std::vector<std::uint64_t>{0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5});
  CHECK(std::ranges::count(last, true) == 1);
  CHECK(last.back());
}

TEST_CASE("a contribution that lies elsewhere counts like one made in place") {
  model in_place{0};
  model elsewhere{0};
  CHECK(reason_of_body([&](step& step, model& mine) {
          ordinary_step(step, mine);
          in_place = mine;
        }) == error{});
  CHECK(reason_of_body([&](step& step, model& mine) {
          for (auto& shard : step.shards()) {
            vector own{};
            auto stream = shard.random();
            for (auto index : shard.samples())
              mine.add_gradient(data()[index], static_cast<float>(stream.uniform()), own);
            shard.contribute(own);
          }
          mine.apply(step.all_reduce(), step.number());
          elsewhere = mine;
        }) == error{});
  CHECK(in_place == elsewhere);
}

TEST_CASE("the ledger's shards partition every step") {
  auto config = settings{};
  config.workers = 3;
  config.shards = 13;
  config.keep_ledger = true;
  auto group = session_group{config};
  check_completed(train_on(group, config, 24).finished, config.steps);
  std::map<std::uint64_t, std::vector<int>> times;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.ledger) {
      CHECK(row.generation == this_generation);
      auto& step = times[row.step.value];
      step.resize(config.shards);
      for (auto v = row.shards.first; v < row.shards.last; ++v)
        ++step.at(v);
    }
  CHECK(times.size() == config.steps);
  for (const auto& [step, counts] : times)
    CHECK(counts == std::vector<int>(config.shards, 1));
}

TEST_CASE("the ledger's digests are complete, differ from step to step, and are the same for any number of workers") {
  auto digests = [](std::uint32_t workers) {
    auto config = settings{};
    config.workers = workers;
    config.shards = 13;
    config.keep_ledger = true;
    auto group = session_group{config};
    check_completed(train_on(group, config, 24).finished, config.steps);
    return digests_of(group);
  };
  const auto alone = digests(1);
  CHECK(alone.size() == settings{}.steps);
  auto all = std::set<std::uint64_t>{};
  for (const auto& [step, pieces] : alone) {
    // The gradient in one piece, the metrics, the state.
    CHECK(pieces.size() == 3);
    all.insert(pieces.at(0));
  }
  CHECK(all.size() == alone.size());
  for (auto workers : {2u, 3u, 8u})
    CHECK(digests(workers) == alone);
}

TEST_CASE("the driver is told where the time of every rank's steps went") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  constexpr auto pause = std::chrono::milliseconds{2};
  const auto finished = group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (ctx.rank() == 1)
        std::this_thread::sleep_for(pause);
      ordinary_step(step, mine);
    });
  });
  check_completed(finished, config.steps);
  std::map<std::uint32_t, times_row> sums;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.times) {
      CHECK(row.rank == batch.rank);
      CHECK(row.generation == this_generation);
      auto& sum = sums[row.rank.value];
      CHECK(row.first.value == sum.last.value + 1);
      sum.last = row.last;
      sum.steps += row.steps;
      sum.compute_us += row.compute_us;
      sum.sent_bytes += row.sent_bytes;
      // Each step is in one bin.
      CHECK(std::accumulate(row.durations.begin(), row.durations.end(), 0u) == row.steps);
      CHECK(row.resident_bytes > 1'000'000);
    }
  REQUIRE(sums.size() == config.workers);
  for (const auto& [rank, sum] : sums)
    CHECK(sum.steps == config.steps);
  for (const auto& [rank, sum] : sums)
    CHECK(sum.sent_bytes > 0);
  CHECK(std::chrono::microseconds{sums[1].compute_us} >= pause * config.steps);
}

TEST_CASE("without a ledger none is sent") {
  auto config = settings{};
  auto group = session_group{config};
  train_on(group, config, 24);
  CHECK(!group.driver().batches_.empty());
  for (const auto& batch : group.driver().batches_)
    CHECK(batch.ledger.empty());
}

TEST_CASE("with the fast reduction replicas agree, and are near the exact result") {
  auto config = settings{};
  config.workers = 3;
  config.shards = 13;
  config.fast = true;
  auto exact = reference{13, 24, config.seed}.train(model{config.seed}, 1, config.steps);
  auto group = session_group{config};
  auto result = train_on(group, config, 24);
  check_completed(result.finished, config.steps);
  for (const auto& each : result.models) {
    CHECK(each == result.models[0]);
    for (std::size_t i = 0; i < dimensions; ++i)
      CHECK(each.weights[i] == doctest::Approx(exact.weights[i]).epsilon(1e-4));
  }
}

TEST_CASE("a gradient that is reduced in parts, while it is still computed or not, ends with the same bits") {
  auto config = settings{};
  config.steps = 5;
  const auto whole = train_in_parts(config, 1 << 20, completion::never);
  for (auto transport : {transport_kind::shm, transport_kind::tcp})
    for (auto workers : {1u, 2u, 3u})
      for (auto bucket_bytes : {std::uint64_t{4096}, std::uint64_t{9000}, std::uint64_t{1} << 20})
        for (auto how : {completion::never, completion::backward, completion::forward, completion::only_the_end}) {
          INFO("workers ", workers, ", bytes in a part ", bucket_bytes, ", completion ", static_cast<int>(how));
          config.transport = transport;
          config.workers = workers;
          CHECK(train_in_parts(config, bucket_bytes, how) == whole);
        }
}

TEST_CASE("the reduction of a part begins when its last contribution is in, and not before") {
  auto group = session_group{settings{}};
  const auto& finished = group.run([&](train_context& ctx) {
    auto plan = plan_with(24);
    plan.gradient_elements = 3072;
    plan.bucket_bytes = 4096;
    ctx.for_each_step(plan, [&](step& step) {
      for (auto& shard : step.shards()) {
        auto begun = [&](std::uint64_t parts) {
          // Four calls in each step before: three parts and the metrics, and the barrier.
          auto call = "reduce_leaves #" + std::to_string((step.number() - 1) * 5 + parts) + " ";
          return contains(group.describe(0), call);
        };
        auto is_last = shard.id().value + 1 == 8;
        shard.mark_ready(2048, 1023);
        CHECK_FALSE(begun(1));
        shard.mark_ready(3071, 1);
        while (is_last && !begun(1))
          std::this_thread::yield();
        // The begin of the gradient has to wait for its middle.
        shard.mark_ready(0, 1024);
        CHECK_FALSE(begun(2));
        shard.mark_ready(1024, 1024);
        while (is_last && !begun(3))
          std::this_thread::yield();
        CHECK(begun(3) == is_last);
      }
      step.all_reduce();
    });
  });
  CHECK(finished[0].reason == error{});
}

TEST_CASE("ranks that own no shards take part in the reduction of parts") {
  auto config = settings{};
  config.steps = 3;
  config.shards = 1;
  const auto alone = train_in_parts(config, 4096, completion::backward);
  config.workers = 3;
  CHECK(train_in_parts(config, 4096, completion::backward) == alone);
}

TEST_CASE("elements that there are not, or that come after all_reduce, cannot be complete") {
  for (auto after : {false, true}) {
    auto group = session_group{settings{}};
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        shard* last = nullptr;
        for (auto& each : step.shards()) {
          last = &each;
          if (!after)
            each.mark_ready(dimensions, 1);
        }
        step.all_reduce();
        REQUIRE(last != nullptr);
        last->mark_ready(0, 1);
      });
    });
    CHECK(finished[0].reason.code == errc::user_error);
    CHECK(contains(finished[0].reason.message, "shard.mark_ready("));
  }
}

TEST_CASE("an evaluation gives the same bits on any number of workers, and sees every sample once") {
  for (std::uint64_t samples : {1u, 5u, 1000u}) {
    std::vector<double> first;
    for (std::uint32_t workers : {1u, 2u, 3u, 4u}) {
      CAPTURE(samples);
      CAPTURE(workers);
      auto config = settings{};
      config.workers = workers;
      auto group = session_group{config};
      std::vector<std::vector<double>> sums(workers);
      for (const auto& each : group.run([&](train_context& ctx) {
             sums[ctx.rank()] =
                 ctx.evaluate(samples, 3, [](std::span<const std::uint64_t> indices, std::span<double> out) {
                   for (auto i : indices) {
                     out[0] += 1;
                     out[1] += static_cast<double>(i) + 1;
                     out[2] += 1.0 / (static_cast<double>(i) + 3);
                   }
                 });
           }))
        CHECK(each.reason == error{});
      if (first.empty())
        first = sums[0];
      for (const auto& each : sums)
        CHECK(each == first);
      auto n = static_cast<double>(samples);
      REQUIRE(first.size() == 3);
      CHECK(first[0] == n);
      CHECK(first[1] == n * (n + 1) / 2);
    }
  }
}

TEST_CASE("an evaluation inside of a step changes nothing") {
  auto config = settings{};
  config.workers = 2;
  auto expected = reference{8, 24, 1}.train(model{1}, 1, config.steps);
  auto group = session_group{config};
  std::vector<model> models(2, model{0});
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      auto count = [&] {
        return ctx.evaluate(9, 1, [](auto indices, auto sums) { sums[0] += static_cast<double>(indices.size()); });
      };
      if (count()[0] != 9)
        throw std::logic_error{"a wrong count"};
      ordinary_step(step, mine);
      if (count()[0] != 9)
        throw std::logic_error{"a wrong count"};
    });
    models[ctx.rank()] = mine;
  }),
                  config.steps);
  CHECK(models[0] == expected);
  CHECK(models[1] == expected);
}

} // namespace

} // namespace troupe
