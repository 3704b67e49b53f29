#include "small_model.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("a run is finished by a decision of its own in the same step, with the same bits, on any number of workers") {
  std::set<std::string> states;
  const auto loss_of_fifth = loss_of_step(5);
  for (auto workers : {1u, 2u, 4u}) {
    auto config = settings{};
    config.workers = workers;
    config.checkpoint_every = 2;
    const auto train = [&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        if (step.mean_loss() == loss_of_fifth)
          step.finish();
      });
      ctx.for_each_step(plan_with(24), [&](step&) { throw std::logic_error{"a loop after the run"}; });
    };
    auto group = session_group{config};
    for (const auto& each : group.run(train)) {
      CHECK(each.reason == error{});
      CHECK(each.step.value == 5);
      CHECK_FALSE(each.stopped);
      states.insert(each.state_sha256);
    }
    CHECK(group.checkpoint_steps() == std::vector<std::uint64_t>{2, 4, 5});
    const auto last = group.checkpoints() / serialization::checkpoint_name(step_id{5});
    CHECK(value_or_throw(serialization::checkpoint::open(last)).content().finishes_run);
    CHECK_FALSE(
        value_or_throw(serialization::checkpoint::open(group.checkpoints() / "step-00000004")).content().finishes_run);
    // There is nothing left to do for a run that goes on from there.
    config.restore_from = last;
    config.is_finished = true;
    auto again = session_group{config};
    for (const auto& each : again.run(train)) {
      CHECK(each.reason == error{});
      CHECK(each.step.value == 5);
      states.insert(each.state_sha256);
    }
    CHECK(again.checkpoint_steps().empty());
  }
  CHECK(states.size() == 1);
}

TEST_CASE("a decision to finish that differs between ranks ends the run, and names them") {
  for (auto transport : {transport_kind::shm, transport_kind::tcp}) {
    auto config = settings{};
    config.workers = 3;
    config.transport = transport;
    auto group = session_group{config};
    const auto& finished = group.run([](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        if (step.number() == 3 && ctx.rank() != 1)
          step.finish();
      });
    });
    auto named = 0;
    for (const auto& each : finished) {
      CAPTURE(each.reason.message);
      CHECK((each.reason.code == errc::mismatch || each.reason.code == errc::aborted));
      if (each.reason.code == errc::mismatch && contains(each.reason.message, "step.finish() was called") &&
          contains(each.reason.message, "step 3") && contains(each.reason.message, "rank 1"))
        ++named;
    }
    CHECK(named > 0);
  }
}

TEST_CASE("a run can be finished only after all_reduce") {
  const auto reason = reason_of([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      step.finish();
      ordinary_step(step, mine);
    });
  });
  CHECK(reason.code == errc::user_error);
  CHECK(contains(reason.message, "step.finish() before step.all_reduce() in step 1"));
}

TEST_CASE("a loss that is not finite is told once, with step, shard and rank, and can end the run before the step") {
  for (auto ends : {false, true}) {
    auto config = settings{};
    config.workers = 2;
    config.end_on_not_finite = ends;
    auto group = session_group{config};
    const auto& finished = group.run([](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        for (auto& shard : step.shards())
          shard.add("loss", step.number() >= 4 && step.number() < 8 && shard.id() == shard_id{6}
                                ? std::numeric_limits<double>::infinity()
                                : 1.0);
        mine.apply(step.all_reduce(), step.number());
      });
    });
    for (const auto& each : finished) {
      CHECK(each.step.value == (ends ? 3 : 12));
      CHECK((each.reason.code == (ends ? errc::invalid_argument : errc::none) ||
             (ends && each.reason.code == errc::aborted)));
    }
    std::vector<not_finite_row> told;
    for (const auto& batch : group.driver().batches_)
      for (const auto& row : batch.not_finite) {
        CHECK(batch.rank == rank_id{1});
        told.push_back(row);
      }
    CHECK(told ==
          std::vector<not_finite_row>{{step_id{4}, shard_id{6}, "loss", std::numeric_limits<double>::infinity()}});
  }
}

TEST_CASE("a body that writes tracked state before all_reduce is found in the first step") {
  auto wrong = reason_of_body([](step& step, model& mine) {
    compute(step, mine);
    mine.momentum[2] += 1;
    mine.apply(step.all_reduce(), step.number());
  });
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "step 1"));
  CHECK(contains(wrong.message, "tensor 'momentum'"));
  CHECK_FALSE(contains(wrong.message, "'weights'"));
  CHECK(contains(wrong.message, "before all_reduce"));
}

TEST_CASE("a body that writes tracked values before all_reduce is found, too") {
  auto wrong = reason_of([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      ctx.state().values()["seen"] = step.number();
      ordinary_step(step, mine);
    });
  });
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "values()"));
}

TEST_CASE("collectives and reports of a custom loop are refused in the body of a step, and not outside") {
  const auto reason = [](const std::function<void(train_context&)>& call) {
    return reason_of([&](train_context& ctx) {
      auto mine = model{ctx.seed()};
      track(ctx, mine);
      call(ctx);
      ctx.for_each_step(plan_with(24), [&](step& step) {
        ordinary_step(step, mine);
        call(ctx);
      });
    });
  };
  const auto sum = reason([](train_context& ctx) {
    std::vector<float> value{1};
    ctx.all_reduce(std::span{value});
  });
  CHECK(sum.code == errc::user_error);
  CHECK(contains(sum.message, "in the body of step 1: its result would depend on the number of workers"));
  CHECK(contains(reason([](train_context& ctx) { ctx.barrier(); }).message, "in the body of step 1"));
}

TEST_CASE("a body that writes tracked state in a later step is found when every step is checked") {
  auto body = [](step& step, model& mine) {
    compute(step, mine);
    // Between two that are checked without being asked to.
    if (step.number() == 3)
      mine.weights[0] += 1;
    mine.apply(step.all_reduce(), step.number());
  };
  CHECK(reason_of_body(body) == error{});
  auto config = settings{};
  config.check_every_step = true;
  auto wrong = reason_of_body(body, config);
  CHECK(wrong.code == errc::user_error);
  CHECK(contains(wrong.message, "rank 0 after step 2"));
  CHECK(contains(wrong.message, "step 3"));
  CHECK(contains(wrong.message, "tensor 'weights'"));
  CHECK(reason_of_body(ordinary_step, config) == error{});
}

TEST_CASE("bodies that do not go shards, all_reduce, apply are told what they do wrong") {
  auto expect = [](const std::string& text, const std::function<void(step&, model&)>& body) {
    CAPTURE(text);
    auto wrong = reason_of_body(body);
    CAPTURE(wrong.message);
    CHECK(wrong.code == errc::user_error);
    CHECK(contains(wrong.message, "step 1"));
    CHECK(contains(wrong.message, text));
  };
  expect("without calling step.all_reduce()", [](step& step, model& mine) { compute(step, mine); });
  expect("called twice", [](step& step, model& mine) {
    compute(step, mine);
    step.all_reduce();
    step.all_reduce();
  });
  expect("computed 0 of its 8 shards", [](step& step, model&) { step.all_reduce(); });
  expect("computed 3 of its 8 shards", [](step& step, model&) {
    for (auto& shard : step.shards())
      if (shard.id().value == 2)
        break;
    step.all_reduce();
  });
  expect("takes shard 1 when shard 0 is due", [](step& step, model&) {
    auto i = step.shards().begin();
    ++i;
    static_cast<void>((*i).id());
  });
  expect("takes shard 0 when shard 8 is due", [](step& step, model& mine) {
    compute(step, mine);
    compute(step, mine);
  });
  expect("computes a shard after all_reduce", [](step& step, model& mine) {
    compute(step, mine);
    step.all_reduce();
    compute(step, mine);
  });
}

TEST_CASE("metrics and gradients that the plan does not have are refused") {
  auto before = reason_of_body([](step& step, model& mine) {
    compute(step, mine);
    static_cast<void>(step.mean_loss());
  });
  CHECK(before.code == errc::user_error);
  CHECK(contains(before.message, "before step.all_reduce()"));
  auto metric = reason_of_body([](step& step, model&) {
    for (auto& shard : step.shards())
      shard.add("accuracy", 1);
  });
  CHECK(metric.code == errc::invalid_argument);
  CHECK(contains(metric.message, "'accuracy'"));
  auto length = reason_of_body([](step& step, model&) {
    auto wrong = std::vector<float>(dimensions + 1);
    for (auto& shard : step.shards())
      shard.contribute(wrong);
  });
  CHECK(length.code == errc::invalid_argument);
  CHECK(contains(length.message, "8 elements to a gradient of 7"));
}

TEST_CASE("a plan that says nothing to do is refused") {
  auto expect = [](const std::string& text, const std::function<void(step_plan&)>& change, std::uint64_t steps = 12) {
    CAPTURE(text);
    auto config = settings{};
    config.steps = steps;
    auto wrong = reason_of(
        [&](train_context& ctx) {
          auto plan = plan_with(24);
          change(plan);
          ctx.for_each_step(plan, [](step&) { throw std::logic_error{"entered"}; });
        },
        config);
    CHECK(wrong.code == errc::invalid_argument);
    CHECK(contains(wrong.message, text));
  };
  expect("data set is empty", [](step_plan& plan) { plan.data.samples = 0; });
  expect("batch_samples is 0", [](step_plan& plan) { plan.batch_samples = 0; });
  expect(
      "how many steps", [](step_plan&) {}, 0);
  expect("2^42", [](step_plan& plan) { plan.steps = std::uint64_t{1} << 40; });
}

TEST_CASE("the plan's own number of steps goes before the run's") {
  auto group = session_group{settings{}};
  check_completed(group.run([](train_context& ctx) {
    auto mine = model{ctx.seed()};
    track(ctx, mine);
    auto plan = plan_with(24);
    plan.steps = 3;
    ctx.for_each_step(plan, [&](step& step) { ordinary_step(step, mine); });
  }),
                  3);
}

TEST_CASE("workers with different plans do not begin") {
  auto config = settings{};
  config.workers = 2;
  auto group = session_group{config};
  for (const auto& each : group.run([](train_context& ctx) {
         auto plan = plan_with(24);
         plan.data.fingerprint += std::to_string(ctx.rank());
         ctx.for_each_step(plan, [](step&) { throw std::logic_error{"entered"}; });
       }))
    CHECK(each.reason.code == errc::mismatch);
  CHECK(group.driver().plans_.at(worker_id{11}).data_fingerprint == "50 samples, fixed1");
}

} // namespace

} // namespace troupe
