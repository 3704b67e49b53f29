#include <charlm/corpus.hpp>
#include <charlm/model.hpp>
#include <charlm/optimizer.hpp>
#include <charlm/training.hpp>

#include <filesystem>
#include <vector>

namespace charlm {

namespace {

/// The mean held-out loss in nats per byte, computed by all workers together.
double held_out_loss(troupe::train_context& ctx, const model& network, const corpus& text) {
  std::vector<std::uint64_t> positions;
  auto sums =
      ctx.evaluate(text.held_out_samples(), 1, [&](std::span<const std::uint64_t> indices, std::span<double> sum) {
        positions.clear();
        for (auto index : indices)
          positions.push_back(text.held_out_position(index));
        sum[0] = network.loss(text.bytes(), positions);
      });
  return sums[0] / static_cast<double>(text.held_out_samples());
}

} // namespace

void train(troupe::train_context& ctx) {
  const auto& config = ctx.config();
  auto shape = model_shape{};
  shape.embedding = config.at("embedding");
  shape.hidden = config.at("hidden");
  auto text = troupe::value_or_throw(
      load_corpus(std::filesystem::path{ctx.options().at("text").get<std::string>()}, shape.context));

  auto network = model{shape};
  auto normal = ctx.random("parameters");
  network.initialise([&](std::uint64_t) { return static_cast<float>(normal.normal()); });
  auto moments = model{shape};
  auto squares = model{shape};
  for (auto& tensor : network.tensors())
    ctx.state().track(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : moments.tensors("adam.m."))
    ctx.state().track(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : squares.tensors("adam.v."))
    ctx.state().track(tensor.name, tensor.values, tensor.shape);

  std::vector<troupe::gradient_tensor> parts;
  for (const auto& tensor : network.tensors())
    parts.push_back({tensor.name, static_cast<std::uint64_t>(tensor.values.data() - network.parameters().data()),
                     tensor.values.size()});
  ctx.name_gradient(std::move(parts));

  troupe::step_plan plan;
  plan.data = {text.training_samples(), text.fingerprint()};
  plan.batch_samples = config.at("batch");
  plan.gradient_elements = network.parameters().size();
  auto evaluate_every = ctx.options().at("evaluate_every").get<std::uint64_t>();
  std::vector<std::uint64_t> positions;

  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards()) {
      positions.clear();
      for (auto sample : shard.samples())
        positions.push_back(text.training_position(sample));
      shard.add("loss", network.forward_backward(text.bytes(), positions, shard.gradient()));
    }
    auto gradient = step.all_reduce();
    adam_update(network.parameters(), moments.parameters(), squares.parameters(), gradient, step.id());
    troupe::metric_map metrics{{"loss", step.mean_loss()}};
    if (step.last() || step.number() % evaluate_every == 0)
      metrics["held_out_loss"] = held_out_loss(ctx, network, text);
    step.report(std::move(metrics));
  });
}

} // namespace charlm
