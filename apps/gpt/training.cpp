#include <gpt/training.hpp>

#include <gpt/network.hpp>
#include <gpt/text.hpp>

#include <troupe/data/evaluation.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/libtorch.hpp>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

namespace gpt {

namespace {

using namespace troupe;

network_shape shape_of(const nlohmann::json& config, std::uint64_t tokens) {
  network_shape result;
  result.vocabulary = static_cast<std::int64_t>(tokens);
  result.block = config.at("block_size");
  result.layers = config.at("layers");
  result.heads = config.at("heads");
  result.embedding = config.at("embedding");
  return result;
}

/// nanoGPT's: a warm-up, half a cosine, and a constant end.
training::schedule schedule_of(const nlohmann::json& config) {
  auto warmup = config.at("warmup_steps").get<std::uint64_t>();
  auto decay = config.at("decay_steps").get<std::uint64_t>();
  auto last = config.at("min_learning_rate").get<double>() / config.at("learning_rate").get<double>();
  return training::warm_up(warmup,
                           decay > warmup ? training::cosine(decay - warmup, last) : training::linear(1, 1, last));
}

/// Applies weight decay to matrices but not to scales.
torch::optim::AdamW make_optimizer(network& model, const nlohmann::json& config) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> scales;
  for (const auto& each : model.parameters())
    (each.dim() > 1 ? matrices : scales).push_back(each);
  auto options = torch::optim::AdamWOptions{config.at("learning_rate").get<double>()};
  options.betas({0.9, config.at("beta2").get<double>()});
  auto group = [&](std::vector<torch::Tensor> parameters, double decay) {
    auto own = std::make_unique<torch::optim::AdamWOptions>(options);
    own->weight_decay(decay);
    return torch::optim::OptimizerParamGroup{std::move(parameters), std::move(own)};
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.push_back(group(std::move(matrices), config.at("weight_decay")));
  groups.push_back(group(std::move(scales), 0));
  return torch::optim::AdamW{std::move(groups), options};
}

/// The sum over the samples of each one's mean loss over its tokens.
torch::Tensor loss_of(network& model, const data::batch& samples, torch::Device device) {
  auto context = libtorch::tensor_of(samples, "context").to(device);
  auto targets = libtorch::tensor_of(samples, "target").to(device).reshape({-1});
  auto scores = model.forward(context);
  auto sum = torch::cross_entropy_loss(scores.view({-1, scores.size(2)}), targets, {}, torch::Reduction::Sum);
  return sum / static_cast<double>(context.size(1));
}

double validation_loss(train_context& ctx, network& model, const data::data_set& validation, torch::Device device,
                       std::uint64_t windows) {
  auto no_gradients = torch::NoGradGuard{};
  model.eval();
  auto sums = data::evaluate(
      ctx, validation, 1,
      [&](const data::batch& samples, auto sum) { sum[0] += loss_of(model, samples, device).template item<double>(); },
      windows);
  model.train();
  return sums[0] / static_cast<double>(validation.size());
}

token_windows open_text(train_context& ctx) {
  const auto block = ctx.config().at("block_size").get<std::uint64_t>();
  const auto& options = ctx.options();
  if (options.contains("text"))
    return value_or_throw(read_windows(options.at("text").get<std::string>(), block));
  return value_or_throw(
      open_token_files({options.at("tokens").get<std::string>(), options.at("validation_tokens").get<std::string>(),
                        ctx.config().at("vocabulary"), "", [&ctx] { ctx.heartbeat(); }},
                       block));
}

/// Files may be larger than memory: their windows are read almost in order, 16,384 of them mixed at a time.
data::loader_options loader_of(const nlohmann::json& config) {
  auto result = data::loader_options{.batch_samples = config.at("batch")};
  if (config.contains("vocabulary"))
    result.order = shuffle::blocks{.block_samples = 256, .window_blocks = 64};
  return result;
}

} // namespace

void train(train_context& ctx) {
  const auto& config = ctx.config();
  auto text = open_text(ctx);
  auto shape = shape_of(config, text.tokens);
  ctx.state().values()[description_value] = describe(shape, text.characters.characters());

  auto device = libtorch::device_of(ctx);
  auto model = network{shape, config.at("dropout").get<double>()};
  model.to(device);
  auto optimizer = make_optimizer(model, config);
  auto replica = libtorch::replica{ctx, model, optimizer};

  replica.schedule(schedule_of(config));
  auto clip = config.at("gradient_clip").get<double>();
  auto evaluate_every = ctx.options().at("evaluate_every").get<std::uint64_t>();
  // The scores of a window take as much memory as it has tokens, times the vocabulary.
  const auto evaluated_together = text.tokens <= 256 ? std::uint64_t{64} : config.at("batch").get<std::uint64_t>();
  auto batches = data::loader{ctx, text.training, loader_of(config)};
  replica.for_each_step(batches.plan(), [&](auto& step) {
    for (auto& shard : replica.shards(step)) {
      auto loss = loss_of(model, batches(step, shard), device);
      loss.backward();
      replica.add(shard, "loss", loss);
    }
    replica.apply(step, [&] {
      if (clip > 0)
        torch::nn::utils::clip_grad_norm_(model.parameters(), clip);
    });
    auto rate = optimizer.param_groups().front().options().get_lr();
    metric_map metrics{{"loss", step.mean_loss()}, {"learning_rate", rate}};
    if (step.last() || step.number() % evaluate_every == 0)
      metrics["validation_loss"] = validation_loss(ctx, model, *text.validation, device, evaluated_together);
    step.report(std::move(metrics));
  });
}

} // namespace gpt
