#include <charlm/corpus.hpp>
#include <charlm/gpu_maths.hpp>
#include <charlm/gpu_network.hpp>
#include <charlm/model.hpp>
#include <charlm/optimizer.hpp>
#include <charlm/training.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace charlm {

namespace {

class gpu_libraries : public troupe::framework {
 public:
  std::string name() const override { return "charlm"; }
  std::map<std::string, std::string> gpu_numerics() const override { return gpu_maths_numerics(); }
};

/// The text and the initial model, read before training.
struct language {
  model_shape shape;
  corpus text;
  model network;
  adam_options adam;

  explicit language(troupe::train_context& ctx)
      : shape{.embedding = ctx.config().at("embedding").get<std::size_t>(),
              .hidden = ctx.config().at("hidden").get<std::size_t>()},
        text{troupe::value_or_throw(
            load_corpus(std::filesystem::path{ctx.options().at("text").get<std::string>()}, shape.context))},
        network{shape} {
    adam.learning_rate = ctx.config().value("learning_rate", adam.learning_rate);
    auto normal = ctx.random("parameters");
    network.initialise([&](std::uint64_t) { return static_cast<float>(normal.normal()); });
  }

  [[nodiscard]] troupe::step_plan plan(const troupe::train_context& ctx) const {
    troupe::step_plan result;
    result.data = text.training();
    result.batch_samples = ctx.config().at("batch");
    result.gradient_elements = shape.parameter_elements();
    return result;
  }

  /// The mean held-out loss in nats per byte, computed by all workers together. `loss_of(indices)` returns the summed
  /// loss of some samples.
  template <class F>
  double held_out_loss(troupe::train_context& ctx, F loss_of) const {
    auto sums =
        ctx.evaluate(text.held_out_samples(), 1,
                     [&](std::span<const std::uint64_t> indices, std::span<double> sum) { sum[0] = loss_of(indices); });
    return sums[0] / static_cast<double>(text.held_out_samples());
  }

  /// Reports a step's metrics.
  template <class F>
  void report(troupe::train_context& ctx, troupe::basic_step& step, F loss_of) const {
    troupe::metric_map metrics{{"loss", step.mean_loss()}};
    auto evaluate_every = ctx.options().at("evaluate_every").get<std::uint64_t>();
    if (step.last() || step.number() % evaluate_every == 0)
      metrics["held_out_loss"] = held_out_loss(ctx, loss_of);
    step.report(std::move(metrics));
  }
};

void train_on_cpu(troupe::train_context& ctx) {
  language all{ctx};
  const auto& text = all.text;
  auto& network = all.network;
  auto moments = model{all.shape};
  auto squares = model{all.shape};
  for (auto& tensor : network.tensors())
    ctx.state().track(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : moments.tensors("adam.m."))
    ctx.state().track(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : squares.tensors("adam.v."))
    ctx.state().track(tensor.name, tensor.values, tensor.shape);

  std::vector<troupe::gradient_tensor> parts;
  for (const auto& place : places_of(all.shape))
    parts.push_back({place.name, place.first, place.elements});
  ctx.name_gradient(std::move(parts));

  std::vector<std::uint64_t> positions;
  auto loss_of = [&](std::span<const std::uint64_t> indices) {
    positions.clear();
    for (auto index : indices)
      positions.push_back(text.held_out_position(index));
    return network.loss(text.bytes(), positions);
  };
  ctx.for_each_step(all.plan(ctx), [&](troupe::step& step) {
    for (auto& shard : step.shards()) {
      positions.clear();
      for (auto sample : shard.samples())
        positions.push_back(text.training_position(sample));
      shard.add("loss", network.forward_backward(text.bytes(), positions, shard.gradient()));
    }
    auto gradient = step.all_reduce();
    adam_update(network.parameters(), moments.parameters(), squares.parameters(), gradient, step.id(), all.adam);
    all.report(ctx, step, loss_of);
  });
}

void train_on_gpu(troupe::train_context& ctx) {
  language all{ctx};
  auto plan = all.plan(ctx);
  // Small buckets let the reduction of the output layer overlap with the rest of the backward pass.
  plan.bucket_bytes = std::max<std::uint64_t>(plan.gradient_elements * sizeof(float) / 4, 1 << 16);
  gpu_network network{ctx.gpu(), ctx.gpu_stream(), all.shape, all.text, plan.batch_samples};
  network.initialise(all.network);
  for (auto& tensor : tensors_of(all.shape, network.parameters()))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : tensors_of(all.shape, network.moments(), "adam.m."))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : tensors_of(all.shape, network.squares(), "adam.v."))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  auto loss_of = [&](std::span<const std::uint64_t> indices) { return network.held_out_loss(indices); };
  ctx.for_each_step(troupe::device_plan{plan}, [&](troupe::device_step& step) {
    network.begin_step();
    for (auto& shard : step.shards())
      network.forward_backward(shard.samples(), shard.gradient(), shard.metric("loss"),
                               [&](std::size_t first, std::size_t count) { shard.mark_ready(first, count); });
    network.update(step.id(), step.all_reduce(), all.adam);
    all.report(ctx, step, loss_of);
  });
}

} // namespace

void train(troupe::train_context& ctx) {
  ctx.device() == "cpu" ? train_on_cpu(ctx) : train_on_gpu(ctx);
}

std::shared_ptr<troupe::framework> make_framework() {
  return std::make_shared<gpu_libraries>();
}

} // namespace charlm
