#include <troupe/data/data_set.hpp>
#include <troupe/data/evaluation.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/inference/batch_predictor.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/libtorch.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/training/plateau.hpp>
#include <troupe/training/schedule.hpp>
#include <troupe/troupe.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

/// Trains a small network with LibTorch as configured by a JSON text, correctly or in ways that are refused.
namespace {

using namespace troupe;

constexpr std::uint64_t batch_samples = 48;

struct network : torch::nn::Module {
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions{1, 4, 3}.padding(1)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Dropout dropout;
  torch::nn::Linear hidden{4 * 8 * 8, 32};
  torch::nn::Linear output{32, 3};
  torch::Tensor scale;

  explicit network(double drop) : dropout(drop) {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("hidden", hidden);
    register_module("output", output);
    scale = register_parameter("scale", torch::full({1}, 1.5), false);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(norm->forward(convolution->forward(images * scale)));
    x = torch::relu(hidden->forward(dropout->forward(x.flatten(1))));
    return output->forward(x);
  }
};

/// Noise with a bright corner, whose position is the class.
data::data_set_ptr make_images() {
  auto random = random_stream{3, "images"};
  constexpr std::size_t count = 200;
  std::vector<float> images;
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<std::int64_t>(i % 3));
    for (std::size_t pixel = 0; pixel < 64; ++pixel) {
      auto corner = (pixel / 32) * 2 + (pixel % 8) / 4;
      images.push_back(static_cast<float>(random.normal() + (corner == i % 3 ? 1 : 0)));
    }
  }
  return value_or_throw(data::make_table(
      {data::make_column("image", std::move(images), {1, 8, 8}), data::make_column("label", std::move(labels))}));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  if (name == "adam")
    return std::make_unique<Adam>(std::move(parameters), AdamOptions{0.01});
  if (name == "adamw")
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions{0.01}.amsgrad(true));
  if (name == "sgd")
    return std::make_unique<SGD>(std::move(parameters),
                                 SGDOptions{0.05}.momentum(0.9).dampening(0.3).weight_decay(0.01));
  if (name == "rmsprop")
    return std::make_unique<RMSprop>(std::move(parameters), RMSpropOptions{0.002}.momentum(0.5).centered(true));
  if (name == "adagrad")
    return std::make_unique<Adagrad>(std::move(parameters), AdagradOptions{0.02}.lr_decay(0.01));
  return std::make_unique<LBFGS>(std::move(parameters), LBFGSOptions{});
}

double rate_of(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  optimizer.param_groups()[0].options().set_lr(rate);
}

torch::Tensor loss_of(network& model, const torch::Tensor& images, const torch::Tensor& labels) {
  return torch::cross_entropy_loss(model.forward(images), labels, {}, torch::Reduction::Sum);
}

void copy_values(network& from, network& to) {
  auto guard = torch::NoGradGuard{};
  for (const auto& each : from.named_parameters())
    to.named_parameters()[each.key()].copy_(each.value());
}

/// The same training with LibTorch alone.
class twin {
 public:
  twin(network& original, const std::string& optimizer)
      : original_(original), model_(0), optimizer_(make_optimizer(optimizer, model_.parameters())) {
    copy_values(original, model_);
  }

  void take_step(const torch::Tensor& images, const torch::Tensor& labels) {
    optimizer_->zero_grad();
    loss_of(model_, images, labels).backward();
    for (auto& each : model_.parameters())
      if (each.grad().defined())
        each.grad().div_(static_cast<double>(batch_samples));
    torch::nn::utils::clip_grad_norm_(model_.parameters(), 0.5);
    optimizer_->step();
    for (const auto& each : original_.named_parameters())
      if (!torch::equal(each.value(), model_.named_parameters()[each.key()]))
        throw std::runtime_error{"LibTorch alone has another " + each.key()};
    for (const auto& each : original_.named_buffers())
      if (!torch::allclose(each.value(), model_.named_buffers()[each.key()], 1e-5, 1e-7))
        throw std::runtime_error{"LibTorch alone has another " + each.key()};
  }

 private:
  network& original_;
  network model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// Page faults of this thread so far.
double page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_minflt);
}

void use_memory() {
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 30; ++i)
    tensors.push_back(torch::ones({1 << 20}));
}

/// A step that uses 120 MiB in 30 tensors, and reports how many pages it faults in.
void use_memory_in_steps(train_context& ctx) {
  std::vector<float> state(1);
  ctx.state().track("state", state);
  step_plan plan;
  plan.data = {1, "nothing"};
  plan.batch_samples = 1;
  plan.gradient_elements = 1;
  ctx.for_each_step(plan, [&](step& step) {
    auto before = page_faults();
    for (auto& shard : step.shards())
      if (shard.samples().size() == 1)
        use_memory();
    (void)step.all_reduce();
    step.report({{"faults", page_faults() - before}});
  });
}

/// One matrix with two names, as a language model's output layer shares its embedding's weights.
struct tied_network : torch::nn::Module {
  torch::Tensor embedding;
  torch::Tensor output;

  tied_network() {
    embedding = register_parameter("embedding", torch::randn({5, 4}));
    output = register_parameter("output", embedding);
  }

  torch::Tensor forward(const torch::Tensor& which) {
    return torch::matmul(embedding.index_select(0, which), output.t());
  }
  double sum() const { return embedding.sum().item<double>(); }
};

void train_tied(train_context& ctx) {
  tied_network model;
  auto optimizer = torch::optim::SGD{{model.embedding}, 0.1};
  auto replica = libtorch::replica{ctx, model, optimizer};
  step_plan plan;
  plan.data = {5, "numbers"};
  plan.batch_samples = 5;
  replica.for_each_step(plan, [&](auto& step) {
    for (auto& shard : replica.shards(step)) {
      auto which = torch::empty({static_cast<std::int64_t>(shard.samples().size())}, torch::kLong);
      std::ranges::copy(shard.samples(), which.data_ptr<std::int64_t>());
      model.forward(which).square().sum().backward();
    }
    replica.apply(step);
    step.report({{"loss", 0}, {"sum", model.sum()}});
  });
}

/// Prints the sum of the weights in a checkpoint of `train_tied` to standard error.
int load_tied(const std::filesystem::path& run) {
  auto latest = value_or_throw(serialization::open_latest(run / "checkpoints"));
  tied_network model;
  value_or_throw(libtorch::load_module(latest.found, model));
  std::fprintf(stderr, "sum %.17g\n", model.sum());
  return 0;
}

/// A framework with a GPU fingerprint.
class gpu_talker : public framework {
 public:
  std::string name() const override { return "talker"; }
  std::map<std::string, std::string> numerics() const override { return {{"kind", "a"}}; }
  std::map<std::string, std::string> gpu_numerics() const override { return {{"model", "b"}}; }
};

/// Kills the process of rank 1 in the middle of the step that the options say.
void die_if_asked(const train_context& ctx, const basic_step& step) {
  if (step.number() == ctx.options().value("kill_at", std::uint64_t{0}) && ctx.rank() == 1 && ctx.generation() == 1)
    std::raise(SIGKILL);
}

/// Each image counts as often as its brightest pixel says.
torch::Tensor weights_of(const torch::Tensor& images) {
  return images.flatten(1).amax(1).abs().ceil();
}

std::unique_ptr<torch::optim::Optimizer> make_grouped_optimizer(network& model) {
  auto group = [](std::vector<torch::Tensor> parameters, double rate, double decay) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(rate);
    options->weight_decay(decay);
    return torch::optim::OptimizerParamGroup{std::move(parameters), std::move(options)};
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.push_back(group({model.hidden->weight, model.output->weight}, 0.02, 0.1));
  groups.push_back(group({model.hidden->bias, model.output->bias, model.norm->weight, model.norm->bias}, 0.01, 0));
  return std::make_unique<torch::optim::AdamW>(std::move(groups));
}

/// bf16, parameter groups, frozen layers, a schedule, clipping, a mean over weights and an average of the weights.
void train_with_kit(train_context& ctx) {
  network model{0.2};
  model.convolution->weight.set_requires_grad(false);
  model.convolution->bias.set_requires_grad(false);
  auto optimizer = make_grouped_optimizer(model);
  libtorch::replica_options options;
  options.divide_by = "weight";
  auto replica = libtorch::replica{ctx, model, *optimizer, options};
  replica.schedule(training::warm_up(4, training::cosine(16, 0.1)));
  auto average = libtorch::weight_average{ctx, model, 0.8};
  auto held_out = make_images();
  auto batches = data::loader{ctx, held_out, {.batch_samples = batch_samples}};
  auto plan = batches.plan();
  plan.metrics = {"loss", "weight"};
  plan.bucket_bytes = 4096;
  replica.for_each_step(plan, [&](auto& step) {
    for (auto& shard : replica.shards(step)) {
      const auto& batch = batches(step, shard);
      auto images = libtorch::tensor_of(batch, "image");
      auto weights = weights_of(images);
      auto scores = [&] {
        auto in_bf16 = libtorch::autocast{ctx};
        auto found = model.forward(images);
        if (found.scalar_type() != torch::kBFloat16)
          throw std::runtime_error{"autocast has no effect"};
        return found.to(torch::kFloat);
      }();
      auto losses = torch::cross_entropy_loss(scores, libtorch::tensor_of(batch, "label"), {}, torch::Reduction::None);
      auto loss = (losses * weights).sum();
      loss.backward();
      replica.add(shard, "loss", loss);
      replica.add(shard, "weight", weights.sum());
      die_if_asked(ctx, step);
    }
    replica.apply(step, [&] { torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5); });
    average.update();
    metric_map metrics{{"loss", step.mean_loss() / step.mean("weight")},
                       {"drawn", torch::rand({1}).item<double>()},
                       {"rate", rate_of(*optimizer)}};
    if (step.last())
      average.evaluate([&] {
        auto no_gradients = torch::NoGradGuard{};
        model.eval();
        auto sums = data::evaluate(ctx, *held_out, 1, [&](const data::batch& rows, auto out) {
          out[0] += loss_of(model, libtorch::tensor_of(rows, "image"), libtorch::tensor_of(rows, "label"))
                        .template item<double>();
        });
        model.train();
        metrics["average_loss"] = sums[0] / static_cast<double>(held_out->size());
      });
    step.report(std::move(metrics));
  });
}

/// Losses so large that their gradients overflow in some steps, and a learning rate that follows the loss.
void train_with_loss_scale(train_context& ctx) {
  network model{0.2};
  auto optimizer = make_optimizer("sgd", model.parameters());
  libtorch::replica_options options;
  options.loss_scale = training::loss_scale_options{.first = 0x1p126, .growth_steps = 6};
  auto replica = libtorch::replica{ctx, model, *optimizer, options};
  auto rate = training::plateau{ctx.state(), {.factor = 0.5, .patience = 1, .threshold = 0.02}};
  auto batches = data::loader{ctx, make_images(), {.batch_samples = batch_samples}};
  std::vector<double> skipped(1);
  ctx.state().track("skipped", skipped);
  replica.for_each_step(batches.plan(), [&](auto& step) {
    for (auto& shard : replica.shards(step)) {
      const auto& batch = batches(step, shard);
      auto loss = loss_of(model, libtorch::tensor_of(batch, "image"), libtorch::tensor_of(batch, "label"));
      (loss * replica.loss_scale()).backward();
      replica.add(shard, "loss", loss);
      die_if_asked(ctx, step);
    }
    if (!replica.apply(step, [&] { set_rate(*optimizer, 0.05 * rate.factor()); }))
      ++skipped[0];
    (void)rate.observe(step.mean_loss());
    step.report({{"loss", step.mean_loss()},
                 {"drawn", torch::rand({1}).item<double>()},
                 {"rate", rate_of(*optimizer)},
                 {"skipped", skipped[0]},
                 {"scale", replica.loss_scale()}});
  });
}

void train(train_context& ctx) {
  const auto& options = ctx.options();
  auto misuse = options.value("misuse", "");
  auto optimizer_name = ctx.config().value("optimizer", "adam");
  network model{ctx.config().value("dropout", 0.3)};
  if (ctx.config().value("channels_last", false))
    for (auto& each : model.parameters())
      if (each.dim() == 4)
        each.set_data(each.contiguous(torch::MemoryFormat::ChannelsLast));
  if (misuse == "double")
    model.to(torch::kDouble);
  network other{0};
  auto optimizer = make_optimizer(optimizer_name, misuse == "foreign" ? other.parameters() : model.parameters());
  if (options.contains("rate"))
    set_rate(*optimizer, options["rate"]);
  libtorch::replica_options replica_options;
  replica_options.overlap = options.value("overlap", true);
  if (misuse == "buffers")
    replica_options.reduced_buffers.clear();
  auto replica = libtorch::replica{ctx, model, *optimizer, replica_options};
  auto scheduler = torch::optim::StepLR{*optimizer, 5, 0.5};
  const auto scheduled = options.value("scheduled", "");
  if (scheduled == "by-replica")
    replica.schedule(scheduler);
  if (scheduled == "every-third")
    replica.schedule(scheduler, 3);
  if (misuse == "no steps")
    replica.schedule(scheduler, 0);
  if (misuse == "moved")
    model.hidden->weight.set_data(model.hidden->weight.clone());

  auto compared = options.value("twin", false) ? std::make_unique<twin>(model, optimizer_name) : nullptr;
  auto kill_at = options.value("kill_at", std::uint64_t{0});
  auto batches = data::loader{ctx, make_images(), {.batch_samples = batch_samples}};
  auto plan = batches.plan();
  plan.bucket_bytes = 4096;
  replica.for_each_step(plan, [&](auto& step) {
    torch::Tensor images;
    torch::Tensor labels;
    if (scheduled == "by-number")
      set_rate(*optimizer, 0.01 / static_cast<double>(step.number()));
    if (misuse == "late schedule" && step.number() == 2)
      replica.schedule(scheduler);
    for (auto& shard : replica.shards(step)) {
      const auto& batch = batches(step, shard);
      images = libtorch::tensor_of(batch, "image").clone();
      labels = libtorch::tensor_of(batch, "label").clone();
      auto loss = loss_of(model, images, labels);
      loss.backward({}, misuse == "two backwards" || options.value("twice", false));
      if (misuse == "two backwards")
        loss.backward();
      if (misuse == "new gradients")
        model.output->bias.mutable_grad() = torch::zeros({3});
      if (misuse == "rank" && ctx.rank() == 1)
        model.hidden->bias.mutable_grad().add_(1e-3);
      replica.add(shard, "loss", loss);
      die_if_asked(ctx, step);
    }
    replica.apply(step, [&] { torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5); });
    if (scheduled == "by-body")
      scheduler.step();
    if (misuse == "rate of rank 1" && ctx.rank() == 1 && step.number() == 3)
      set_rate(*optimizer, 0.5);
    if (compared)
      compared->take_step(images, labels);
    // Random numbers drawn after a step are the same everywhere.
    step.report(
        {{"loss", step.mean_loss()}, {"drawn", torch::rand({1}).item<double>()}, {"rate", rate_of(*optimizer)}});
    // Waits until the lost worker is replaced.
    if (kill_at > 0 && step.number() > kill_at && options.value("await_joiner", false) && ctx.world_size() < 3)
      std::this_thread::sleep_for(std::chrono::milliseconds{200});
  });
}

/// Prints the accuracy of the latest checkpoint's model to standard error.
int predict(const nlohmann::json& wanted) {
  auto run = std::filesystem::path{wanted.at("storage").get<std::string>()} / wanted.at("name").get<std::string>();
  auto latest = value_or_throw(serialization::open_latest(run / "checkpoints"));
  auto model = std::make_shared<network>(0.9);
  std::shared_ptr<torch::nn::Module> given = model;
  if (wanted.at("predict") == "tied")
    return load_tied(run);
  if (wanted.at("predict") == "other")
    given = std::make_shared<torch::nn::LinearImpl>(2, 3);
  auto forward = [model, more = wanted.at("predict") == "columns"](const data::batch& rows) {
    auto scores = model->forward(libtorch::tensor_of(rows, "image"));
    return more ? torch::cat({scores, scores}, 1) : scores;
  };
  auto images = make_images();
  auto which = wanted.at("predict") == "averaged" ? libtorch::weights::averaged : libtorch::weights::trained;
  auto predictor = value_or_throw(libtorch::load_predictor(latest.found, given, {"a", "b", "c"}, forward, which));
  std::vector<std::uint64_t> all(images->size());
  std::iota(all.begin(), all.end(), std::uint64_t{0});
  auto scores = value_or_throw(inference::predict_rows(*predictor, *images, all));
  std::size_t right = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto row = std::span{scores}.subspan(3 * i, 3);
    right += static_cast<std::size_t>(std::ranges::max_element(row) - row.begin()) == i % 3 ? 1 : 0;
  }
  std::fprintf(stderr, "right: %zu of %zu\n", right, all.size());
  return 0;
}

inference::prediction_job make_prediction(const inference::prediction_request& request) {
  auto model = std::make_shared<network>(0.9);
  auto forward = [model](const data::batch& rows) { return model->forward(libtorch::tensor_of(rows, "image")); };
  return {make_images(), value_or_throw(libtorch::load_predictor(request.model, model, {"a", "b", "c"}, forward))};
}

/// Predicts for all images with the latest checkpoint of the run `from`, over a run's workers.
int predict_all(const troupe::app& program, const troupe::function& predict_rows, const nlohmann::json& wanted,
                troupe::trainer_config config) {
  auto runs = config.run.storage_path;
  inference::batch_prediction_config how;
  how.checkpoint =
      value_or_throw(serialization::open_latest(runs / wanted.at("from") / "checkpoints")).found.directory();
  how.output = runs / (config.run.name + ".csv");
  how.block_rows = 40;
  how.trainer = std::move(config);
  auto predictor = inference::batch_predictor{program, predict_rows, std::move(how)};
  auto result = value_or_throw(predictor.run());
  std::fprintf(stderr, "%llu rows\n", static_cast<unsigned long long>(result.rows));
  return predictor.exit_code();
}

} // namespace

// torch_run JSON
int main(int argc, char** argv) {
  auto framework = troupe::libtorch::make_framework();
  auto predicting = troupe::inference::prediction_function("predict", make_prediction);
  predicting.frameworks = {framework};
  auto app = troupe::app{
      argc,
      argv,
      {function{"train", train, {framework}}, function{"without_framework", train},
       function{"other_framework", train, {troupe::libtorch::make_framework(), std::make_shared<gpu_talker>()}},
       function{"tied", train_tied, {framework}}, function{"kit", train_with_kit, {framework}},
       function{"loss_scale", train_with_loss_scale, {framework}},
       function{"use_memory", use_memory_in_steps, {framework}}, predicting}};
  if (argc != 2)
    return 2;
  auto wanted = nlohmann::json::parse(argv[1]);
  troupe::trainer_config config;
  config.config = wanted.value("config", nlohmann::json::object());
  config.options = wanted.value("options", nlohmann::json::object());
  config.scaling.num_workers = wanted.value("workers", 1u);
  config.scaling.shards = wanted.value("shards", 8u);
  if (wanted.value("use_gpu", false))
    config.scaling.resources_per_worker.gpus = 0.125;
  config.run.storage_path = wanted.at("storage").get<std::string>();
  config.run.name = wanted.at("name");
  config.run.steps = wanted.value("steps", std::uint64_t{24});
  config.cluster.nodes = wanted.value("nodes", std::vector<std::string>{});
  config.run.verify_determinism = wanted.value("verify", std::uint64_t{0});
  try {
    if (wanted.contains("predict"))
      return predict(wanted);
    if (wanted.contains("from"))
      return predict_all(app, predicting, wanted, std::move(config));
    auto trainer = troupe::trainer{app, app.find_function(wanted.value("function", "train")), std::move(config)};
    trainer.fit_or_throw();
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "torch_run: %s\n", x.what());
    return 1;
  }
}
