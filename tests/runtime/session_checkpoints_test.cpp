#include "small_model.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <fcntl.h>
#include <future>
#include <latch>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <stdexcept>
#include <sys/stat.h>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("a stop that reaches one rank late ends all ranks after the same step") {
  for (std::uint32_t early : {0u, 2u}) {
    auto config = settings{};
    config.workers = 3;
    auto group = session_group{config};
    // The others hear of it only once the first has acted on it.
    group.driver().on_part = [&](const checkpoint_part& part) {
      if (part.rank.value == early)
        for (std::uint32_t rank = 0; rank < config.workers; ++rank)
          if (rank != early)
            group.command(rank, 1, stop_command{});
    };
    std::vector<model> models(config.workers, model{0});
    const auto& finished = group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        if (step.number() == 5 && ctx.rank() == early)
          group.command(early, 1, stop_command{});
        ordinary_step(step, mine);
      });
      if (!ctx.stop_requested())
        throw std::logic_error{"the loop ended without a stop"};
      models[ctx.rank()] = mine;
    });
    auto expected = reference{8, 24, 1}.train(model{1}, 1, 5);
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) {
      CHECK(finished[rank].reason == error{});
      CHECK(finished[rank].stopped);
      CHECK(finished[rank].step.value == 5);
      CHECK(finished[rank].state_sha256 == finished[0].state_sha256);
      CHECK(models[rank] == expected);
    }
    CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{5});
  }
}

TEST_CASE("a stop in the last step does not make a complete run a stopped one") {
  auto config = settings{};
  auto group = session_group{config};
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.last())
        group.command(0, 1, stop_command{});
      ordinary_step(step, mine);
    });
  }),
                  config.steps);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{12});
}

TEST_CASE("a checkpoint that is asked for is taken after the same step on all ranks, and the training goes on") {
  auto config = settings{};
  config.workers = 3;
  auto group = session_group{config};
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 4)
      for (std::uint32_t rank : {0u, 2u})
        group.command(rank, 1, checkpoint_command{});
  };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 4 && ctx.rank() == 1)
        group.command(1, 1, checkpoint_command{});
      ordinary_step(step, mine);
    });
  }),
                  config.steps);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{4, 12});
}

TEST_CASE("checkpoints are taken every so many steps and after the last, and hold what the run had then") {
  auto config = settings{};
  config.workers = 3;
  config.steps = 10;
  config.checkpoint_every = 3;
  auto group = session_group{config};
  auto result = train_on(group, config, 24);
  check_completed(result.finished, 10);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{3, 6, 9, 10});
  auto definition = reference{8, 24, 1};
  auto expected = model{1};
  auto done = std::uint64_t{0};
  for (const auto& entry : value_or_throw(serialization::list_checkpoints(group.checkpoints()))) {
    auto stored = value_or_throw(serialization::checkpoint::open(entry.path));
    value_or_throw(stored.verify());
    expected = definition.train(expected, done + 1, entry.step.value);
    done = entry.step.value;
    vector weights{};
    value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
    CHECK(weights == expected.weights);
    CHECK(stored.content().world_size == 3);
    CHECK(stored.content().parts.size() == 3);
    CHECK(stored.content().generation == this_generation);
    CHECK(stored.content().metrics.at("loss") == definition.losses.back());
    if (done == 10)
      CHECK(value_or_throw(serialization::state_sha256(stored)) == result.finished[0].state_sha256);
  }
}

TEST_CASE("reports up to a checkpoint are with the driver before its part is") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 2;
  auto group = session_group{config};
  std::atomic<int> late{0};
  std::atomic<int> parts{0};
  group.driver().on_part = [&](const checkpoint_part& part) {
    ++parts;
    late += group.driver().reported(part.rank) >= part.step.value ? 0 : 1;
  };
  check_completed(train_on(group, config, 24).finished, config.steps);
  CHECK(parts == 12);
  CHECK(late == 0);
}

TEST_CASE("a worker that is asked to saves all of the state before its run ends, as it was after the last step") {
  settings config;
  config.workers = 2;
  config.steps = 4;
  auto undisturbed = session_group{config};
  const auto wanted = train_on(undisturbed, config, 24).finished[0].state_sha256;
  config.steps = 9;
  const auto fail_in_fifth = [&](session_group& group) {
    group.driver().saver = worker_id{10};
    // Rank 0 has applied step 4 when rank 1 throws.
    auto fifth_begins = std::latch{1};
    return group.run([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        if (step.number() == 5 && ctx.rank() == 1) {
          fifth_begins.wait();
          throw std::runtime_error{"out of range"};
        }
        if (step.number() == 5)
          fifth_begins.count_down();
        ordinary_step(step, mine);
      });
    });
  };
  auto saving = session_group{config};
  auto finished = fail_in_fifth(saving);
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[0].step.value == 4);
  CHECK(finished[1].reason.code == errc::user_error);
  REQUIRE(saving.checkpoint_steps() == std::vector<std::uint64_t>{4});
  const auto saved = value_or_throw(serialization::checkpoint::open(saving.checkpoints() / "step-00000004"));
  CHECK(saved.content().world_size == 1);
  CHECK(value_or_throw(serialization::state_sha256(saved)) == wanted);

  auto full = session_group{config};
  full.driver().refuse_checkpoints = error{errc::io_error, "No space left on device"};
  finished = fail_in_fifth(full);
  CHECK(finished[0].reason.code == errc::io_error);
  CHECK(contains(finished[0].reason.message, "the state of step 4 could not be saved before the end of the run"));
}

TEST_CASE("a checkpoint that is given up does not end the training; one that the run's end cuts off does") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 3;
  auto full = session_group{config};
  full.driver().refuse_checkpoints = error{errc::io_error, "No space left on device"};
  check_completed(train_on(full, config, 24).finished, config.steps);
  CHECK(full.driver().outcomes_.size() == 4);

  auto ending = session_group{config};
  // Rank 0 waits for rank 1's part, which does not come.
  std::promise<void> waiting;
  ending.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 0)
      waiting.set_value();
  };
  const auto& finished = ending.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ordinary_step(step, mine);
      if (step.number() == 3 && ctx.rank() == 1) {
        waiting.get_future().wait();
        throw std::runtime_error{"no part"};
      }
    });
  });
  CHECK(finished[0].reason.code == errc::aborted);
  CHECK(finished[0].step.value == 3);
}

TEST_CASE("training goes on while a checkpoint is written; what is due meanwhile is skipped, but not the last") {
  auto config = settings{};
  config.workers = 3;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 1;
  auto undisturbed_group = session_group{settings{}};
  auto undisturbed = train_on(undisturbed_group, settings{}, 24);
  auto group = session_group{config};
  std::promise<void> late;
  auto gate = late.get_future().share();
  // Rank 1's part of the first comes when another two are due.
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 2)
      gate.wait();
  };
  std::vector<model> models(config.workers, model{0});
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      if (step.number() == 12 && ctx.rank() == 0)
        late.set_value();
      ordinary_step(step, mine);
    });
    models[ctx.rank()] = mine;
  }),
                  12);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 12});
  CHECK(models[0] == undisturbed.models[0]);
  // The checkpoint is the state of its step, not of the time at which it was written.
  auto stored =
      value_or_throw(serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{2})));
  value_or_throw(stored.verify());
  vector weights{};
  value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
  CHECK(weights == reference{8, 24, 1}.train(model{1}, 1, 2).weights);
  // Told once, by rank 0.
  std::vector<std::uint64_t> skipped;
  for (const auto& batch : group.driver().batches_)
    for (auto step : batch.skipped) {
      CHECK(batch.rank == rank_id{0});
      skipped.push_back(step.value);
    }
  CHECK(skipped == std::vector<std::uint64_t>{4, 6, 8, 10});
}

TEST_CASE("what may be the best is not skipped: training waits for the one that is being written") {
  auto config = settings{};
  config.workers = 3;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 1;
  config.may_skip = false;
  auto group = session_group{config};
  std::promise<void> late;
  auto gate = late.get_future().share();
  // The first is under way when the barrier of step 4 asks.
  group.driver().on_part = [&](const checkpoint_part& part) {
    if (part.rank.value == 1 && part.step.value == 2)
      gate.wait();
  };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ordinary_step(step, mine);
      if (step.number() == 4 && ctx.rank() == 0)
        late.set_value();
    });
  }),
                  12);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 6, 8, 10, 12});
  for (const auto& batch : group.driver().batches_)
    CHECK(batch.skipped.empty());
}

TEST_CASE("with none in flight training waits for each checkpoint") {
  auto config = settings{};
  config.workers = 2;
  config.checkpoint_every = 2;
  config.checkpoints_in_flight = 0;
  auto group = session_group{config};
  std::atomic<std::uint64_t> begun{0};
  std::atomic<int> early{0};
  group.driver().on_part = [&](const checkpoint_part& part) { early += begun > part.step.value ? 1 : 0; };
  check_completed(group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      begun = step.number();
      ordinary_step(step, mine);
    });
  }),
                  12);
  CHECK(early == 0);
  CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 6, 8, 10, 12});
}

/// What a checkpoint holds of files that no earlier one has, without its manifest.
std::uint64_t new_bytes(const fs::path& checkpoint, std::set<ino_t>& seen) {
  auto result = std::uint64_t{0};
  for (const auto& entry : fs::directory_iterator{checkpoint}) {
    struct stat info {};
    REQUIRE(::stat(entry.path().c_str(), &info) == 0);
    if (entry.path().filename() != serialization::manifest_file_name && seen.insert(info.st_ino).second)
      result += static_cast<std::uint64_t>(info.st_size);
  }
  return result;
}

TEST_CASE("a large tensor that is frozen is not written again, and every checkpoint loads without the others") {
  constexpr auto mebibyte = std::uint64_t{1} << 20;
  for (auto reuse : {true, false})
    for (auto workers : {1u, 2u}) {
      CAPTURE(reuse);
      CAPTURE(workers);
      auto config = settings{};
      config.workers = workers;
      config.checkpoint_every = 1;
      config.reuse_unchanged = reuse;
      auto group = session_group{config};
      auto table = std::vector<float>(9 * mebibyte / sizeof(float));
      std::iota(table.begin(), table.end(), 1.0f);
      check_completed(group.run([&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        auto copy = table;
        track(ctx, mine);
        ctx.state().track("table", copy);
        ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
      }),
                      12);
      auto seen = std::set<ino_t>{};
      auto written = std::vector<std::uint64_t>{};
      for (const auto& each : value_or_throw(serialization::list_checkpoints(group.checkpoints()))) {
        written.push_back(new_bytes(each.path, seen) / mebibyte);
        value_or_throw(value_or_throw(serialization::checkpoint::open(each.path)).verify());
      }
      // Twice, and in every eighth.
      if (reuse)
        CHECK(written == std::vector<std::uint64_t>{9, 9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0});
      else
        CHECK(written == std::vector<std::uint64_t>(12, 9));
      for (std::uint64_t step = 1; step <= 12; ++step)
        if (step != 7)
          value_or_throw(
              serialization::remove_checkpoint(group.checkpoints() / serialization::checkpoint_name(step_id{step})));
      auto stored = value_or_throw(
          serialization::checkpoint::open(group.checkpoints() / serialization::checkpoint_name(step_id{7})));
      auto loaded = std::vector<float>(table.size());
      value_or_throw(stored.read_tensor("table", std::as_writable_bytes(std::span{loaded})));
      CHECK(loaded == table);
      vector weights{};
      value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
      CHECK(weights == reference{8, 24, 1}.train(model{1}, 1, 7).weights);
    }
}

TEST_CASE("a run that goes on from a checkpoint on another number of workers ends with the same bits") {
  auto whole = settings{};
  auto whole_group = session_group{whole};
  auto undisturbed = train_on(whole_group, whole, 24);
  for (auto [before, after] : {std::pair{1u, 3u}, std::pair{3u, 1u}, std::pair{4u, 2u}}) {
    CAPTURE(before);
    CAPTURE(after);
    auto first = settings{};
    first.workers = before;
    first.steps = 5;
    auto first_group = session_group{first};
    check_completed(train_on(first_group, first, 24).finished, 5);

    auto second = settings{};
    second.workers = after;
    second.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{5});
    auto second_group = session_group{second};
    auto resumed = train_on(second_group, second, 24);
    check_completed(resumed.finished, 12);
    CHECK(resumed.finished[0].state_sha256 == undisturbed.finished[0].state_sha256);
    for (const auto& each : resumed.models)
      CHECK(each == undisturbed.models[0]);
    CHECK(second_group.checkpoint_steps() == std::vector<std::uint64_t>{12});
  }
}

TEST_CASE("a new run from another's state begins with its tensors and values, at step 1") {
  auto first = settings{};
  auto first_group = session_group{first};
  auto lender = model{0};
  check_completed(first_group.run([&](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.state().values()["note"] = 17;
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
    lender = mine;
  }),
                  12);
  auto second = settings{};
  second.steps = 2;
  second.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  second.restore_step = false;
  auto second_group = session_group{second};
  auto expected = reference{8, 24, 1}.train(lender, 1, 2);
  check_completed(second_group.run([&](train_context& ctx) {
    CHECK(ctx.restored_step() == 0);
    CHECK(ctx.state().values()["note"] == 17);
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    CHECK(mine == lender);
    ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
    CHECK(mine == expected);
  }),
                  2);
}

TEST_CASE("a run that is resumed where it ended has nothing to do") {
  auto config = settings{};
  auto first_group = session_group{config};
  auto first = train_on(first_group, config, 24);
  auto again = config;
  again.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  auto second_group = session_group{again};
  auto second = train_on(second_group, again, 24);
  check_completed(second.finished, 12);
  CHECK(second.finished[0].state_sha256 == first.finished[0].state_sha256);
  CHECK(second_group.checkpoint_steps().empty());
}

TEST_CASE("a checkpoint of tensors that nobody tracks is refused, and so is one that is not there") {
  auto config = settings{};
  auto first_group = session_group{config};
  train_on(first_group, config, 24);
  config.restore_from = first_group.checkpoints() / serialization::checkpoint_name(step_id{12});
  auto untracked = reason_of(
      [](train_context& ctx) {
        auto mine = model{ctx.seed()};
        ctx.state().track("weights", std::span<float>{mine.weights});
        ctx.for_each_step(plan_with(24), [&](step& step) { ordinary_step(step, mine); });
      },
      config);
  CHECK(untracked.code == errc::mismatch);
  CHECK(contains(untracked.message, "'momentum'"));
  CHECK(contains(untracked.message, config.restore_from.string()));

  config.restore_from = first_group.checkpoints() / "step-99999999";
  auto absent = reason_of([](train_context&) { throw std::logic_error{"entered"}; }, config);
  CHECK(absent.code == errc::not_found);
  CHECK(contains(absent.message, "step-99999999"));
}

} // namespace

} // namespace troupe
