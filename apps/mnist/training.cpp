#include <mnist/training.hpp>

#include <mnist/prediction.hpp>

#include <troupe/data/data_set.hpp>
#include <troupe/data/evaluation.hpp>
#include <troupe/data/idx.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/libtorch.hpp>
#include <troupe/serialization/files/file_digest.hpp>

#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mnist {

namespace {

using namespace troupe;

/// Two convolutions and two linear layers, for images of 28 by 28.
struct network : torch::nn::Module {
  torch::nn::Sequential layers{torch::nn::Conv2d{torch::nn::Conv2dOptions{1, 16, 3}.padding(1).bias(false)},
                               torch::nn::BatchNorm2d{16},
                               torch::nn::ReLU{},
                               torch::nn::MaxPool2d{2},
                               torch::nn::Conv2d{torch::nn::Conv2dOptions{16, 32, 3}.padding(1).bias(false)},
                               torch::nn::BatchNorm2d{32},
                               torch::nn::ReLU{},
                               torch::nn::MaxPool2d{2},
                               torch::nn::Flatten{},
                               torch::nn::Linear{32 * 7 * 7, 64},
                               torch::nn::ReLU{},
                               torch::nn::Dropout{0.25},
                               torch::nn::Linear{64, static_cast<std::int64_t>(classes)}};

  network() { register_module("layers", layers); }

  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images); }
};

/// Images as the network's input.
torch::Tensor normalised(const data::batch& samples, torch::Device device) {
  return libtorch::tensor_of(samples, "image").to(device, torch::kFloat).div(255).sub(0.13).div(0.31).unsqueeze(1);
}

/// The scores of the classes for images.
using forward_pass = std::function<torch::Tensor(const torch::Tensor& images)>;

/// A batch on the model's device.
struct images_and_labels {
  torch::Tensor images;
  torch::Tensor labels;

  images_and_labels(const data::batch& samples, torch::Device device)
      : images(normalised(samples, device)), labels(libtorch::tensor_of(samples, "label").to(device, torch::kLong)) {}
};

data::column read_images(const std::filesystem::path& path) {
  auto images = value_or_throw(data::read_idx(path, "image"));
  if (images.spec.type != dtype::u8 || images.spec.shape != std::vector<std::uint64_t>{28, 28})
    throw exception{errc::invalid_argument,
                    fmt::format("{} contains {}, expected u8[28, 28]: images of 28 by 28 pixels", path.string(),
                                data::describe(images.spec))};
  return images;
}

data::data_set_ptr load_images(const train_context& ctx, const char* image_option, const char* label_option) {
  auto path = [&](const char* name) { return std::filesystem::path{ctx.options().at(name).get<std::string>()}; };
  auto images_path = path(image_option);
  auto labels_path = path(label_option);
  auto images = read_images(images_path);
  auto labels = value_or_throw(data::read_idx(labels_path, "label"));
  if (!labels.spec.shape.empty())
    throw exception{errc::invalid_argument, fmt::format("{} contains {}, expected one label for each image",
                                                        labels_path.string(), data::describe(labels.spec))};
  if (images.samples() != labels.samples())
    throw exception{errc::invalid_argument,
                    fmt::format("{} has {} images, but {} has {} labels: use the two files of one set",
                                images_path.string(), images.samples(), labels_path.string(), labels.samples())};
  return value_or_throw(data::make_table({std::move(images), std::move(labels)}));
}

/// The confusion matrix over held-out images (rows are true classes, columns predictions), then the sum of their
/// losses.
template <class Module>
std::vector<double> evaluate(train_context& ctx, Module& model, const forward_pass& forward,
                             const data::data_set& held_out, torch::Device device) {
  auto no_gradients = torch::NoGradGuard{};
  model.eval();
  auto sums = data::evaluate(ctx, held_out, classes * classes + 1, [&](const data::batch& samples, auto out) {
    auto [images, labels] = images_and_labels{samples, device};
    auto logits = forward(images);
    auto predicted = logits.argmax(1).cpu();
    auto is = labels.cpu();
    for (std::int64_t i = 0; i < is.size(0); ++i)
      out[static_cast<std::size_t>(is[i].item<std::int64_t>()) * classes +
          static_cast<std::size_t>(predicted[i].item<std::int64_t>())] += 1;
    out.back() += torch::cross_entropy_loss(logits, labels, {}, torch::Reduction::Sum).item<double>();
  });
  model.train();
  return sums;
}

/// Adds the results of an evaluation to a step's metrics.
void add_to(metric_map& metrics, const std::vector<double>& sums, std::uint64_t samples, bool with_table) {
  double right = 0;
  for (std::size_t is = 0; is < classes; ++is)
    right += sums[is * classes + is];
  metrics["held_out_accuracy"] = right / static_cast<double>(samples);
  metrics["held_out_loss"] = sums.back() / static_cast<double>(samples);
  for (std::size_t i = 0; with_table && i < classes * classes; ++i)
    metrics[confusion_name(i / classes, i % classes)] = sums[i];
}

struct image_sets {
  data::data_set_ptr training;
  data::data_set_ptr held_out;
};

image_sets load_sets(const train_context& ctx) {
  auto all = load_images(ctx, "images", "labels");
  if (ctx.options().contains("test_images"))
    return {all, load_images(ctx, "test_images", "test_labels")};
  auto held_out_images = ctx.config().at("held_out").get<std::uint64_t>();
  if (held_out_images == 0 || held_out_images >= all->size())
    throw exception{errc::invalid_argument,
                    fmt::format("--held-out {} of {} images: leave some for training and some for evaluation",
                                held_out_images, all->size())};
  return {value_or_throw(data::slice(all, 0, all->size() - held_out_images)),
          value_or_throw(data::slice(all, all->size() - held_out_images, held_out_images))};
}

/// The model that Python has exported, if it takes images and gives scores of the classes.
torch::jit::Module load_script(const train_context& ctx, torch::Device device) {
  const auto path = ctx.options().at("model").get<std::string>();
  // The driver has read the file of its own host.
  if (value_or_throw(serialization::describe_file(path)) != ctx.config().at("model").get<std::string>())
    throw exception{errc::mismatch, fmt::format("{} is not the driver's model: copy it to all hosts", path)};
  try {
    auto result = torch::jit::load(path, device);
    auto no_gradients = torch::NoGradGuard{};
    result.eval();
    auto scores = result.forward({torch::zeros({2, 1, 28, 28}, device)}).toTensor();
    if (scores.sizes() != torch::IntArrayRef{2, static_cast<std::int64_t>(classes)})
      throw exception{errc::mismatch, fmt::format("{} gives a tensor of shape [{}] for two images of [1, 28, 28], "
                                                  "expected [2, {}]: a score for each class",
                                                  path, fmt::join(scores.sizes(), ", "), classes)};
    result.train();
    return result;
  } catch (const c10::Error& x) {
    const std::string text = x.what_without_backtrace();
    throw exception{errc::invalid_argument, fmt::format("{} cannot be used as a TorchScript model of images: {}", path,
                                                        text.substr(0, text.find("\n\n")))};
  }
}

template <class Module>
void train_module(train_context& ctx, Module& model, std::vector<torch::Tensor> parameters, const forward_pass& forward,
                  torch::Device device) {
  auto [training, held_out] = load_sets(ctx);
  auto optimizer = torch::optim::Adam{std::move(parameters), ctx.config().at("learning_rate").get<double>()};
  auto replica = libtorch::replica{ctx, model, optimizer};

  auto batches = data::loader{ctx, training, {.batch_samples = ctx.config().at("batch")}};
  auto evaluate_every = ctx.options().at("evaluate_every").get<std::uint64_t>();
  replica.for_each_step(batches.plan(), [&](auto& step) {
    for (auto& shard : replica.shards(step)) {
      auto [images, labels] = images_and_labels{batches(step, shard), device};
      auto loss = torch::cross_entropy_loss(forward(images), labels, {}, torch::Reduction::Sum);
      loss.backward();
      replica.add(shard, "loss", loss);
    }
    replica.apply(step);
    metric_map metrics{{"loss", step.mean_loss()}};
    if (step.last() || step.number() % evaluate_every == 0)
      add_to(metrics, evaluate(ctx, model, forward, *held_out, device), held_out->size(), step.last());
    step.report(std::move(metrics));
  });
}

inference::predictor_ptr make_predictor(const serialization::checkpoint& source) {
  auto model = std::make_shared<network>();
  auto forward = [model](const data::batch& samples) {
    auto [probability, likeliest] = model->forward(normalised(samples, torch::kCPU)).softmax(1).max(1);
    return torch::stack({likeliest.to(torch::kFloat), probability}, 1);
  };
  return value_or_throw(libtorch::load_predictor(source, model, {"class", "probability"}, forward));
}

} // namespace

void train(train_context& ctx) {
  auto device = libtorch::device_of(ctx);
  if (ctx.options().contains("model")) {
    auto model = load_script(ctx, device);
    std::vector<torch::Tensor> parameters;
    for (const auto& each : model.parameters())
      parameters.push_back(each);
    train_module(
        ctx, model, std::move(parameters),
        [&](const torch::Tensor& images) { return model.forward({images}).toTensor(); }, device);
    return;
  }
  network model;
  model.to(device);
  train_module(
      ctx, model, model.parameters(), [&](const torch::Tensor& images) { return model.forward(images); }, device);
}

inference::prediction_job make_prediction_job(const inference::prediction_request& request) {
  auto path = std::filesystem::path{request.options.at("file").get<std::string>()};
  auto rows = value_or_throw(data::make_table({read_images(path)}));
  return {rows, make_predictor(request.model)};
}

inference::loaded_model load_model(const serialization::checkpoint& source) {
  // Of this thread.
  at::set_num_threads(1);
  return {make_predictor(source), {{"image", dtype::u8, {28, 28}, {}}}};
}

} // namespace mnist
