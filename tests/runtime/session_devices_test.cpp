#include "small_model.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>
#include <fake_device.hpp>

#include <algorithm>
#include <fcntl.h>
#include <new>
#include <tuple>

namespace troupe {

using namespace testing;

namespace {

TEST_CASE("a run whose state no pointer leads to ends, resumes and stores with the bits of one whose state lies here") {
  settings config;
  config.workers = 2;
  config.steps = 8;
  config.checkpoint_every = 3;
  config.check_every_step = true;
  session_group here{config};
  auto plain = train_on(here, config, 24);
  session_group there{config};
  auto hidden = train_hidden_on(there, config, 24);
  check_completed(hidden.finished, 8);
  CHECK(hidden.finished[0].state_sha256 == plain.finished[0].state_sha256);
  for (const auto& each : hidden.models)
    CHECK(each == plain.models[0]);
  REQUIRE(there.checkpoint_steps() == here.checkpoint_steps());
  for (auto step : there.checkpoint_steps()) {
    auto identity = [&](const session_group& of) {
      auto path = of.checkpoints() / serialization::checkpoint_name({step});
      return value_or_throw(serialization::state_sha256(value_or_throw(serialization::checkpoint::open(path))));
    };
    CHECK(identity(there) == identity(here));
  }
  // Each goes on from what the other has stored, on another number of workers.
  settings longer = config;
  longer.workers = 3;
  longer.steps = 12;
  longer.restore_from = here.checkpoints() / serialization::checkpoint_name({6});
  session_group third{longer};
  auto resumed = train_hidden_on(third, longer, 24);
  longer.restore_from = there.checkpoints() / serialization::checkpoint_name({8});
  session_group fourth{longer};
  auto other = train_on(fourth, longer, 24);
  check_completed(resumed.finished, 12);
  CHECK(resumed.finished[0].state_sha256 == other.finished[0].state_sha256);
}

TEST_CASE("replicas that differ in memory that no pointer leads to are found") {
  settings config;
  config.workers = 2;
  session_group group{config};
  auto finished = group.run([&](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed() + (ctx.rank() == 1 ? 1 : 0)});
    mine.track(ctx);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      compute(step, mine.load());
      std::ignore = step.all_reduce();
    });
  });
  CHECK(std::ranges::any_of(finished, [](const worker_finished& x) {
    return x.reason.code == errc::mismatch && contains(x.reason.message, "tensor 'weights' on rank 1");
  }));
}

TEST_CASE("a body that writes memory that no pointer leads to before all_reduce is found") {
  auto reason = reason_of([](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed()});
    mine.track(ctx);
    ctx.for_each_step(plan_with(24), [&](step& step) {
      compute(step, mine.load());
      mine.store(model{7});
      std::ignore = step.all_reduce();
    });
  });
  CHECK(reason.code == errc::user_error);
  CHECK(contains(reason.message, "tensor 'weights'"));
}

using collectives::testing::fake_device;
using collectives::testing::on_host;

template <class Plan, class Body>
concept runs_steps = requires(train_context& ctx, const Plan& plan, const Body& body) {
  ctx.for_each_step(plan, body);
};
template <class Shard>
concept adds_metrics = requires(Shard& x) {
  x.add("loss", 1.0);
};
template <class Shard>
concept contributes = requires(Shard& x, std::span<const float> gradient) {
  x.contribute(gradient);
};
template <class Gradient>
concept reads_elements = requires(const Gradient& x) {
  x[0];
};

/// The same training with everything in memory of a GPU: the same arithmetic, as work on the context's stream.
outcome train_on_gpus(session_group& group, const settings& config, std::uint64_t batch) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run([&](train_context& ctx) {
    auto memory = value_or_throw(collectives::device_memory::make(ctx.gpu(), sizeof(model)));
    auto& mine = *new (memory.address()) model{ctx.seed()};
    ctx.track_on_gpu("weights", device_span{std::data(mine.weights), std::size(mine.weights)});
    ctx.track_on_gpu("momentum", device_span{std::data(mine.momentum), std::size(mine.momentum)});
    auto* stream = ctx.gpu_stream().handle();
    ctx.for_each_step(device_plan{plan_with(batch)}, [&](device_step& step) {
      for (auto& shard : step.shards()) {
        auto work = [&mine, samples = std::vector(shard.samples().begin(), shard.samples().end()),
                     random = shard.random(), gradient = on_host(shard.gradient()),
                     loss = shard.metric("loss").address()]() mutable {
          for (auto index : samples)
            *loss += mine.add_gradient(data()[index], static_cast<float>(random.uniform()), gradient);
        };
        value_or_throw(fake_device::run_on(stream, work));
      }
      auto gradient = on_host(step.all_reduce());
      value_or_throw(
          fake_device::run_on(stream, [&mine, gradient, number = step.number()] { mine.apply(gradient, number); }));
      step.report({{"loss", step.mean_loss()}});
    });
    value_or_throw(ctx.gpu()->synchronize());
    result.models[ctx.rank()] = mine;
  });
  return result;
}

TEST_CASE("a run on a GPU ends, stores and resumes with the bits of the same arithmetic on the CPU") {
  for (auto [workers, fast] : {std::pair{1u, false}, {1u, true}, {2u, false}, {3u, false}}) {
    CAPTURE(workers);
    CAPTURE(fast);
    settings config;
    config.workers = workers;
    config.steps = 8;
    config.checkpoint_every = 3;
    config.check_every_step = true;
    config.fast = fast;
    config.keep_ledger = true;
    session_group here{config};
    auto plain = train_on(here, config, 24);
    config.has_gpus = true;
    session_group there{config};
    auto on_gpu = train_on_gpus(there, config, 24);
    check_completed(on_gpu.finished, 8);
    if (!fast)
      CHECK(digests_of(there) == digests_of(here));
    for (const auto& each : on_gpu.models)
      CHECK(each == plain.models[0]);
    CHECK(on_gpu.finished[0].state_sha256 == plain.finished[0].state_sha256);
    REQUIRE(there.checkpoint_steps() == here.checkpoint_steps());
    config.steps = 12;
    config.restore_from = here.checkpoints() / serialization::checkpoint_name({6});
    session_group third{config};
    auto resumed = train_on_gpus(third, config, 24);
    config.restore_from = there.checkpoints() / serialization::checkpoint_name({6});
    config.has_gpus = false;
    session_group fourth{config};
    auto other = train_on(fourth, config, 24);
    CHECK(resumed.finished[0].state_sha256 == other.finished[0].state_sha256);
    CHECK(resumed.finished[0].step == step_id{12});
  }
}

TEST_CASE("a gradient on a GPU that is reduced in parts while it is computed has the bits of one that is not") {
  constexpr std::size_t elements = 5000;
  auto train_with = [&](bool on_gpu, std::uint64_t bucket_bytes) {
    settings config;
    config.steps = 3;
    config.has_gpus = on_gpu;
    session_group group{config};
    auto finished = group.run([&](train_context& ctx) {
      std::vector<float> host(elements);
      auto memory = on_gpu ? value_or_throw(collectives::device_memory::make(ctx.gpu(), elements * sizeof(float)))
                           : collectives::device_memory{};
      auto on_device = memory.bytes().as<float>();
      auto weights = on_gpu ? on_host(on_device) : std::span{host};
      std::ranges::fill(weights, 1.0f);
      on_gpu ? ctx.track_on_gpu("weights", on_device) : ctx.state().track("weights", weights);
      auto run = [&](std::function<void()> work) {
        on_gpu ? value_or_throw(fake_device::run_on(ctx.gpu_stream().handle(), std::move(work))) : work();
      };
      auto plan = plan_with(24);
      plan.gradient_elements = elements;
      plan.bucket_bytes = bucket_bytes;
      auto body = [&](auto& step) {
        for (auto& shard : step.shards()) {
          auto gradient = on_host(shard.gradient());
          for (auto first : {3000u, 700u, 0u}) {
            auto last = first == 3000 ? 5000u : first == 700 ? 3000u : 700u;
            run([=, v = shard.id().value] {
              for (auto i = first; i < last; ++i)
                gradient[i] += weights[i] / static_cast<float>(i + v + 1);
            });
            shard.mark_ready(first, last - first);
          }
        }
        auto mean = on_host(step.all_reduce());
        run([=] {
          for (std::size_t i = 0; i < elements; ++i)
            weights[i] -= mean[i];
        });
      };
      if (!on_gpu)
        return ctx.for_each_step(plan, [&](step& step) { body(step); });
      ctx.for_each_step(device_plan{plan}, [&](device_step& step) { body(step); });
      value_or_throw(ctx.gpu()->synchronize());
    });
    CHECK(finished[0].reason == error{});
    return finished[0].state_sha256;
  };
  const auto wanted = train_with(false, 1 << 20);
  CHECK(wanted.size() == 64);
  for (std::uint64_t bucket_bytes : {4096u, 8192u, 1u << 20})
    CHECK(train_with(true, bucket_bytes) == wanted);
}

TEST_CASE("what belongs to a plan on a GPU does not compile with one on the CPU, nor the other way round") {
  constexpr auto host_body = [](step&) {};
  constexpr auto device_body = [](device_step&) {};
  static_assert(runs_steps<step_plan, decltype(host_body)> && runs_steps<device_plan, decltype(device_body)>);
  static_assert(!runs_steps<step_plan, decltype(device_body)> && !runs_steps<device_plan, decltype(host_body)>);
  static_assert(!std::is_convertible_v<step_plan, device_plan> && !std::is_convertible_v<device_plan, step_plan>);
  static_assert(adds_metrics<shard> && !adds_metrics<device_shard>);
  static_assert(contributes<shard> && !contributes<device_shard>);
  static_assert(reads_elements<decltype(std::declval<step&>().all_reduce())>);
  static_assert(!reads_elements<decltype(std::declval<device_step&>().all_reduce())>);
}

TEST_CASE("a metric on a GPU has a name of the plan's, and a worker without a GPU has none") {
  settings config;
  config.has_gpus = true;
  auto wrong = reason_of(
      [](train_context& ctx) {
        ctx.for_each_step(device_plan{plan_with(24)}, [](device_step& step) {
          for (auto& shard : step.shards())
            std::ignore = shard.metric("gain");
        });
      },
      config);
  CHECK(contains(wrong.message, "gain"));
  auto none = reason_of([](train_context& ctx) { std::ignore = ctx.gpu(); });
  CHECK(none.code == errc::invalid_argument);
  CHECK(contains(none.message, "scaling.use_gpu"));
}

} // namespace

} // namespace troupe
