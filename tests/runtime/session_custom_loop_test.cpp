#include "small_model.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <map>
#include <stdexcept>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("code with a loop of its own has the rank collectives") {
  constexpr std::uint32_t workers = 3;
  auto config = settings{};
  config.workers = workers;
  auto group = session_group{config};
  struct seen {
    std::vector<float> sum{1, 2, 3};
    std::vector<double> mean{0};
    std::vector<std::int32_t> least{0};
    std::vector<std::int64_t> most{0};
    std::vector<float> product{0};
    std::vector<std::int32_t> all;
    std::vector<float> part;
    std::vector<std::int32_t> dealt;
    std::vector<float> from_two;
  };
  std::vector<seen> ranks(workers);
  for (const auto& each : group.run([&](train_context& ctx) {
         auto& mine = ranks[ctx.rank()];
         auto rank = static_cast<std::int32_t>(ctx.rank());
         for (auto& x : mine.sum)
           x += static_cast<float>(10 * rank);
         ctx.all_reduce(std::span{mine.sum});
         mine.mean[0] = rank;
         ctx.all_reduce(std::span{mine.mean}, reduction::mean);
         mine.least[0] = 7 - rank;
         ctx.all_reduce(std::span{mine.least}, reduction::min);
         mine.most[0] = 7 - rank;
         ctx.all_reduce(std::span{mine.most}, reduction::max);
         mine.product[0] = static_cast<float>(rank + 2);
         ctx.all_reduce(std::span{mine.product}, reduction::product);
         std::vector<std::int32_t> own{rank, rank * 100};
         mine.all.resize(std::size_t{2} * workers);
         ctx.all_gather(std::span<const std::int32_t>{own}, std::span{mine.all});
         std::vector<float> blocks{1, 2, 3};
         mine.part.resize(1);
         ctx.reduce_scatter(std::span<const float>{blocks}, std::span{mine.part});
         std::vector<std::int32_t> dealt{10 * rank, 10 * rank + 1, 10 * rank + 2};
         mine.dealt.resize(workers);
         ctx.all_to_all(std::span<const std::int32_t>{dealt}, std::span{mine.dealt});
         mine.from_two.assign(2, static_cast<float>(rank));
         ctx.broadcast(std::span{mine.from_two}, 2);
         ctx.barrier();
       }))
    CHECK(each.reason == error{});
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    const auto& mine = ranks[rank];
    CHECK(mine.sum == std::vector<float>{33, 36, 39});
    CHECK(mine.mean == std::vector<double>{1});
    CHECK(mine.least == std::vector<std::int32_t>{5});
    CHECK(mine.most == std::vector<std::int64_t>{7});
    CHECK(mine.product == std::vector<float>{24});
    CHECK(mine.all == std::vector<std::int32_t>{0, 0, 1, 100, 2, 200});
    CHECK(mine.part == std::vector<float>{3.0f * static_cast<float>(rank + 1)});
    auto own = static_cast<std::int32_t>(rank);
    CHECK(mine.dealt == std::vector<std::int32_t>{own, 10 + own, 20 + own});
    CHECK(mine.from_two == std::vector<float>{2, 2});
  }
}

TEST_CASE("reports of a custom loop count as steps and take checkpoints when asked to") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    for (auto i = 1; i <= 4; ++i) {
      std::vector<double> sum{static_cast<double>(i)};
      ctx.all_reduce(std::span{sum});
      total[0] += sum[0];
      ctx.report({{"total", total[0]}, {"rank", ctx.rank()}}, i % 2 == 0 ? save_checkpoint::yes : save_checkpoint::no);
    }
  });
  check_completed(finished, 4, 0);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4});
  auto stored =
      value_or_throw(serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{4})));
  CHECK(stored.content().metrics.at("total") == 20);
  std::map<std::uint32_t, std::vector<double>> totals;
  for (const auto& batch : group.driver().batches_)
    for (const auto& row : batch.rows) {
      CHECK(row.values.at("rank") == batch.rank.value);
      CHECK(row.step.value == totals[batch.rank.value].size() + 1);
      totals[batch.rank.value].push_back(row.values.at("total"));
    }
  for (auto rank : {0u, 1u})
    CHECK(totals[rank] == std::vector<double>{2, 6, 12, 20});

  config.restore_from = group.checkpoints() / serialization::checkpoint_name(step_id{4});
  auto again = session_group{config};
  check_completed(again.run([](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    if (total[0] != 20 || ctx.restored_step() != 4)
      throw std::logic_error{"not restored"};
    ctx.report({}, save_checkpoint::yes);
  }),
                  5, 0);
  CHECK(again.checkpoint_steps() == std::vector<std::uint64_t>{5});
}

TEST_CASE("a loop of a custom loop that ends on a stop is a stopped run") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    std::vector<double> total{0};
    ctx.state().track("total", total);
    for (auto i = 1; i <= 100; ++i) {
      if (i == 3 && ctx.rank() == 1)
        group.command(1, 1, stop_command{});
      std::vector<std::int32_t> stop{ctx.stop_requested() ? 1 : 0};
      ctx.all_reduce(std::span{stop}, reduction::max);
      if (stop[0] == 1) {
        ctx.report({}, save_checkpoint::yes);
        return;
      }
      total[0] += 1;
      ctx.report({{"total", total[0]}});
    }
  });
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.step.value == 3);
  }
  CHECK(finished[1].stopped);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{3});
}

TEST_CASE("ranks that report a checkpoint at different steps are told so") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  for (const auto& each : group.run([](train_context& ctx) {
         std::vector<double> total{0};
         ctx.state().track("total", total);
         if (ctx.rank() == 1)
           ctx.report({{"extra", 1}});
         ctx.report({}, save_checkpoint::yes);
       })) {
    auto known = each.reason.code == errc::mismatch || each.reason.code == errc::aborted;
    CHECK(known);
    if (each.reason.code == errc::mismatch)
      CHECK(contains(each.reason.message, "different steps, 1 and 2"));
  }
  CHECK(group.checkpoint_steps().empty());
}

TEST_CASE("what is reported last, and before an exception, is with the driver when the worker has finished") {
  for (auto throws : {false, true}) {
    auto group = session_group{settings{}};
    group.run([&](train_context& ctx) {
      for (auto i = 0; i < 100; ++i)
        ctx.report({{"i", i}});
      if (throws)
        throw std::runtime_error{"the end"};
    });
    CHECK(group.driver().reported(rank_id{0}) == 100);
    CHECK(group.driver().batches_.back().applied.value == 100);
  }
}

TEST_CASE("a lost peer ends a collective of a custom loop") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  const auto& finished = group.run([](train_context& ctx) {
    ctx.barrier();
    if (ctx.rank() == 1)
      throw std::runtime_error{"gone"};
    ctx.barrier();
  });
  CHECK(finished[1].reason.code == errc::user_error);
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[2].reason.code == errc::aborted);
}

} // namespace

} // namespace troupe
