#pragma once

#include "session_group.hpp"

#include <troupe/data_order.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>
#include <hidden_memory.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace troupe::testing {

constexpr std::size_t dimensions = 7;
constexpr std::uint64_t data_samples = 50;
using vector = std::array<float, dimensions>;

struct sample {
  vector x;
  float y = 0;
};

inline const std::vector<sample>& data() {
  static const auto result = [] {
    auto stream = random_stream{99, "data"};
    std::vector<sample> all(data_samples);
    for (auto& each : all) {
      each.y = 1;
      for (std::size_t i = 0; i < dimensions; ++i) {
        each.x[i] = static_cast<float>(stream.uniform() * 2 - 1);
        each.y += each.x[i] * static_cast<float>(i);
      }
    }
    return all;
  }();
  return result;
}

struct model {
  vector weights{};
  vector momentum{};

  explicit model(std::uint64_t seed) {
    auto stream = random_stream{seed, "weights"};
    for (auto& each : weights)
      each = static_cast<float>(stream.uniform());
  }

  /// Adds one sample's gradient of half the squared error, `noise` times as large; returns the error's square.
  double add_gradient(const sample& one, float noise, std::span<float> gradient) const {
    auto error = -one.y;
    for (std::size_t i = 0; i < dimensions; ++i)
      error += weights[i] * one.x[i];
    for (std::size_t i = 0; i < dimensions; ++i)
      gradient[i] += error * one.x[i] * noise;
    return static_cast<double>(error) * error;
  }

  void apply(std::span<const float> gradient, std::uint64_t step) {
    auto rate = 0.1f / static_cast<float>(step);
    for (std::size_t i = 0; i < dimensions; ++i) {
      momentum[i] = 0.5f * momentum[i] + gradient[i];
      weights[i] -= rate * momentum[i];
    }
  }

  bool operator==(const model& other) const {
    return std::memcmp(weights.data(), other.weights.data(), sizeof weights) == 0 &&
           std::memcmp(momentum.data(), other.momentum.data(), sizeof momentum) == 0;
  }
};

inline step_plan plan_with(std::uint64_t batch) {
  step_plan plan;
  plan.data = {data_samples, "fixed"};
  plan.batch_samples = batch;
  plan.gradient_elements = dimensions;
  return plan;
}

inline void track(train_context& ctx, model& mine) {
  ctx.state().track("weights", std::span<float>{mine.weights});
  ctx.state().track("momentum", std::span<float>{mine.momentum});
}

inline void compute(step& step, const model& mine) {
  for (auto& shard : step.shards()) {
    auto stream = shard.random();
    for (auto index : shard.samples())
      shard.add("loss", mine.add_gradient(data()[index], static_cast<float>(stream.uniform()), shard.gradient()));
  }
}

/// The body that keeps to the rules.
inline void ordinary_step(step& step, model& mine) {
  compute(step, mine);
  mine.apply(step.all_reduce(), step.number());
  step.report({{"loss", step.mean_loss()}});
}

/// What a run must end with, from the definitions alone: no shard lists, no communicator, no accumulator.
class reference {
 public:
  reference(std::uint32_t shards, std::uint64_t batch, std::uint64_t seed)
      : shards_(shards), batch_(batch), seed_(seed) {}

  model train(model state, std::uint64_t first, std::uint64_t last) {
    for (auto step = first; step <= last; ++step) {
      auto top = std::uint32_t{1};
      while (top < shards_)
        top *= 2;
      auto sum = subtree(state, step, 0, top);
      for (auto& each : sum.gradient)
        each /= static_cast<float>(batch_);
      losses.push_back(sum.loss / static_cast<double>(batch_));
      state.apply(sum.gradient, step);
    }
    return state;
  }

  std::vector<double> losses;

 private:
  struct contribution {
    vector gradient{};
    double loss = 0;
  };

  contribution subtree(const model& state, std::uint64_t step, std::uint32_t first, std::uint32_t width) {
    if (width == 1)
      return leaf(state, step, first);
    auto left = subtree(state, step, first, width / 2);
    if (first + width / 2 >= shards_)
      return left;
    auto right = subtree(state, step, first + width / 2, width / 2);
    for (std::size_t i = 0; i < dimensions; ++i)
      left.gradient[i] += right.gradient[i];
    left.loss += right.loss;
    return left;
  }

  contribution leaf(const model& state, std::uint64_t step, std::uint32_t shard) {
    contribution result;
    auto stream = random_stream{seed_, step_id{step}, shard_id{shard}};
    for (auto i = shard * batch_ / shards_; i < (shard + 1) * batch_ / shards_; ++i) {
      auto position = (step - 1) * batch_ + i;
      auto index = keyed_permutation{data_samples, seed_, position / data_samples}(position % data_samples);
      result.loss += state.add_gradient(data()[index], static_cast<float>(stream.uniform()), result.gradient);
    }
    return result;
  }

  std::uint32_t shards_;
  std::uint64_t batch_;
  std::uint64_t seed_;
};

/// The ordinary run's loss in this step.
inline double loss_of_step(std::size_t step) {
  auto run = reference{8, 24, 1};
  run.train(model{1}, 1, step);
  return run.losses.back();
}

/// What became of an ordinary run.
struct outcome {
  std::vector<model> models;
  std::vector<worker_finished> finished;
};

inline outcome train_on(session_group& group, const settings& config, std::uint64_t batch,
                        const std::function<void()>& meanwhile = {}) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(batch), [&](step& step) { ordinary_step(step, mine); });
        result.models[ctx.rank()] = mine;
      },
      meanwhile);
  return result;
}

/// The tensors of a model in memory that no pointer leads to, as on a device.
struct hidden_model {
  std::shared_ptr<testing::hidden_memory> weights = std::make_shared<testing::hidden_memory>(sizeof(vector));
  std::shared_ptr<testing::hidden_memory> momentum = std::make_shared<testing::hidden_memory>(sizeof(vector));

  [[nodiscard]] model load() const {
    model result{0};
    std::ranges::copy(weights->values<float>(), result.weights.begin());
    std::ranges::copy(momentum->values<float>(), result.momentum.begin());
    return result;
  }
  void store(const model& from) const {
    weights->assign(std::vector(from.weights.begin(), from.weights.end()));
    momentum->assign(std::vector(from.momentum.begin(), from.momentum.end()));
  }
  void track(train_context& ctx) const {
    ctx.state().track("weights", dtype::f32, {dimensions}, weights);
    ctx.state().track("momentum", dtype::f32, {dimensions}, momentum);
  }
};

inline outcome train_hidden_on(session_group& group, const settings& config, std::uint64_t batch) {
  outcome result;
  result.models.assign(config.workers, model{0});
  result.finished = group.run([&](train_context& ctx) {
    hidden_model mine;
    mine.store(model{ctx.seed()});
    mine.track(ctx);
    ctx.for_each_step(plan_with(batch), [&](step& step) {
      auto copy = mine.load();
      ordinary_step(step, copy);
      mine.store(copy);
    });
    result.models[ctx.rank()] = mine.load();
  });
  return result;
}

/// `digits` of the state's identity: none in a custom loop, whose state is in checkpoints only.
inline void check_completed(const std::vector<worker_finished>& finished, std::uint64_t step, std::size_t digits = 64) {
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.step.value == step);
    CHECK_FALSE(each.stopped);
    CHECK(each.run == this_run);
    CHECK(each.generation == this_generation);
    CHECK(each.state_sha256.size() == digits);
    CHECK(each.state_sha256 == finished[0].state_sha256);
  }
  for (std::uint32_t rank = 0; rank < finished.size(); ++rank)
    CHECK(finished[rank].worker == worker_id{10 + rank});
}

/// What a single worker's run with this function ends with.
inline error reason_of(const std::function<void(train_context&)>& function, settings config = {}) {
  auto group = session_group{std::move(config)};
  return group.run(function)[0].reason;
}

/// What a run ends with whose body is `body`.
inline error reason_of_body(const std::function<void(step&, model&)>& body, settings config = {}) {
  return reason_of(
      [&](train_context& ctx) {
        auto mine = model{ctx.seed()};
        track(ctx, mine);
        ctx.for_each_step(plan_with(24), [&](step& step) { body(step, mine); });
      },
      std::move(config));
}

/// How the body says that pieces of the gradient are complete.
enum class completion { never, backward, forward, only_the_end };

/// A gradient of several parts, whose every element depends on the samples and the weights; gives the final state.
inline std::string train_in_parts(settings config, std::uint64_t bucket_bytes, completion how) {
  constexpr std::uint64_t elements = 6'001;
  constexpr std::uint64_t piece = 700;
  auto group = session_group{config};
  const auto& finished = group.run([&](train_context& ctx) {
    std::vector<float> weights(elements, 1.0f);
    ctx.state().track("weights", weights);
    auto plan = plan_with(24);
    plan.gradient_elements = elements;
    plan.bucket_bytes = bucket_bytes;
    ctx.for_each_step(plan, [&](step& step) {
      for (auto& shard : step.shards()) {
        auto add = [&](std::uint64_t first, std::uint64_t last) {
          for (auto sample : shard.samples())
            for (auto i = first; i < last; ++i)
              shard.gradient()[i] += weights[i] / static_cast<float>(1 + (sample * 31 + i) % 97);
        };
        // Written piece by piece in the order in which they are told, so that a part that is reduced too early is
        // reduced without something.
        for (std::uint64_t n = 0; n < (elements + piece - 1) / piece; ++n) {
          auto k = how == completion::forward ? n : (elements - 1) / piece - n;
          auto first = k * piece;
          auto last = std::min(elements, first + piece);
          add(first, last);
          if (how == completion::backward || how == completion::forward || (how == completion::only_the_end && n < 3))
            shard.mark_ready(first, last - first);
        }
        shard.add("loss", 1.0);
      }
      auto gradient = step.all_reduce();
      CHECK(step.mean_loss() == static_cast<double>(config.shards) / 24);
      for (std::uint64_t i = 0; i < elements; ++i)
        weights[i] -= 0.25f * gradient[i];
    });
  });
  for (const auto& each : finished) {
    CHECK(each.reason == error{});
    CHECK(each.state_sha256 == finished[0].state_sha256);
  }
  return finished[0].state_sha256;
}

} // namespace troupe::testing
