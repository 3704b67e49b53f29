// Trains a Keras model, which keras_model.py has exported, on images of the MNIST family. Python is not needed any
// more.
#include <command_line.hpp>
#include <dashboard_option.hpp>

#include <troupe/data/data_set.hpp>
#include <troupe/data/evaluation.hpp>
#include <troupe/data/idx.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/tensorflow.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe;

struct image_sets {
  data::data_set_ptr training;
  data::data_set_ptr held_out;
};

image_sets load_sets(const train_context& ctx) {
  auto column = [&](const char* option, const char* name) {
    return value_or_throw(data::read_idx(ctx.options().at(option).get<std::string>(), name));
  };
  std::vector<data::column> columns{column("images", "image"), column("labels", "label")};
  if (columns[0].samples() != columns[1].samples())
    throw exception{errc::invalid_argument,
                    fmt::format("there are {} images and {} labels: use the two files of one set", columns[0].samples(),
                                columns[1].samples())};
  auto all = value_or_throw(data::make_table(std::move(columns)));
  auto held_out = ctx.config().at("held_out").get<std::uint64_t>();
  if (held_out == 0 || held_out >= all->size())
    throw exception{errc::invalid_argument,
                    fmt::format("--held-out {} of {} images: leave some for training and some for evaluation", held_out,
                                all->size())};
  return {value_or_throw(data::slice(all, 0, all->size() - held_out)),
          value_or_throw(data::slice(all, all->size() - held_out, held_out))};
}

/// The summed loss and the number of images whose class has the highest score.
std::vector<double> evaluate(train_context& ctx, tensorflow::replica& replica, const data::data_set& held_out) {
  return data::evaluate(ctx, held_out, 2, [&](const data::batch& samples, auto sums) {
    const auto found = replica.evaluate(samples);
    const auto labels = samples.values<std::uint8_t>("label");
    const auto scores = std::span{found.outputs};
    sums[0] += found.loss;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto row = scores.subspan(i * replica.outputs(), replica.outputs());
      sums[1] += std::ranges::max_element(row) - row.begin() == static_cast<int>(labels[i]) ? 1 : 0;
    }
  });
}

void train(train_context& ctx) {
  auto [training, held_out] = load_sets(ctx);
  auto replica = tensorflow::replica{ctx, ctx.options().at("model").get<std::string>()};
  if (auto warm_up = ctx.config().at("warm_up_steps").get<std::uint64_t>(); warm_up > 0)
    replica.schedule(training::warm_up(warm_up, training::constant()));
  auto batches = data::loader{ctx, training, {.batch_samples = ctx.config().at("batch")}};
  auto evaluate_every = ctx.options().at("evaluate_every").get<std::uint64_t>();
  ctx.for_each_step(batches.plan(replica.gradient_elements()), [&](step& step) {
    for (auto& shard : step.shards())
      replica.compute(shard, batches(step, shard));
    replica.apply(step);
    metric_map metrics{{"loss", step.mean_loss()}};
    if (step.last() || step.number() % evaluate_every == 0) {
      auto sums = evaluate(ctx, replica, *held_out);
      metrics["held_out_loss"] = sums[0] / static_cast<double>(held_out->size());
      metrics["held_out_accuracy"] = sums[1] / static_cast<double>(held_out->size());
    }
    step.report(std::move(metrics));
  });
}

} // namespace

int main(int argc, char** argv) {
  auto train_keras = function{"train", train, {tensorflow::make_framework()}};
  auto program = app{argc, argv, {train_keras}};
  trainer_config config;
  config.run.steps = 200;
  std::string model;
  std::string images;
  std::string labels;
  std::string storage = "runs";
  std::string workers = "2";
  auto held_out = std::uint64_t{2000};
  auto batch = std::uint64_t{256};
  auto warm_up_steps = std::uint64_t{0};
  auto evaluate_every = std::uint64_t{100};
  auto quiet = false;
  CLI::App cli{
      "Trains a Keras model that keras_model.py has exported on IDX images. The number of worker processes does "
      "not change the result, bit for bit.",
      "keras"};
  cli.add_option("--model", model, "The exported model's directory, on each host")->required();
  cli.add_option("--images", images, "IDX file of images, 28 by 28 bytes each; may be compressed with gzip")
      ->required();
  cli.add_option("--labels", labels, "IDX file of their classes, 0 to 9")->required();
  cli.add_option("--held-out", held_out, "Number of images at the end that are for evaluation")->capture_default_str();
  cli.add_option("--batch", batch, "Samples in each step's batch")->capture_default_str();
  cli.add_option("--warm-up-steps", warm_up_steps, "Steps in which the learning rate rises to the model's")
      ->capture_default_str();
  cli.add_option("--steps", config.run.steps, "The last step; a resumed run continues to it")->capture_default_str();
  cli.add_option("--seed", config.run.seed, "Determines dropout and the order of the data")->capture_default_str();
  cli.add_option("--evaluate-every", evaluate_every, "Steps between evaluations")
      ->capture_default_str()
      ->check(apps::positive_number());
  cli.add_option("--workers", workers, "Worker processes, or a range such as 2-8; does not affect the result")
      ->check(apps::worker_range_text())
      ->capture_default_str();
  cli.add_option("--shards", config.scaling.shards, "Logical shards of each batch; affects the result")
      ->capture_default_str();
  cli.add_option("--checkpoint-every", config.checkpoint.every_steps, "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  apps::add_name(cli, config.run.name);
  apps::add_monitoring(cli, config.monitoring);
  cli.add_option("--storage", storage, "Directory that contains the run's directory")->capture_default_str();
  apps::add_resume(cli, config.run);
  apps::add_mirror(cli, config.checkpoint.mirror);
  apps::add_time_limit(cli, config.run);
  apps::add_nodes(cli, config.cluster);
  apps::add_leases(cli, config.scaling);
  cli.add_flag("--quiet", quiet, "Show no progress");
  auto dashboard = apps::dashboard_option{cli};
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(storage))
    return *code;
  try {
    config.scaling.num_workers = value_or_throw(parse_worker_range(workers));
    config.run.storage_path = storage;
    config.config = {{"batch", batch}, {"held_out", held_out}, {"warm_up_steps", warm_up_steps}};
    config.options = {{"model", std::filesystem::absolute(model).string()},
                      {"images", std::filesystem::absolute(images).string()},
                      {"labels", std::filesystem::absolute(labels).string()},
                      {"evaluate_every", evaluate_every}};
    auto trainer = troupe::trainer{program, train_keras, std::move(config)};
    run_callbacks callbacks;
    if (!quiet)
      callbacks.progress = [last = std::uint64_t{0}](const run_progress& x) mutable {
        auto accuracy = x.metrics.find("held_out_accuracy");
        if (std::exchange(last, x.step) != x.step && accuracy != x.metrics.end())
          std::printf("step %5llu  held-out accuracy %.4f\n", static_cast<unsigned long long>(x.step),
                      accuracy->second);
      };
    trainer.set_callbacks(std::move(callbacks));
    auto result = trainer.fit_or_throw();
    std::printf("held-out accuracy %s, training loss %s after step %llu\nstate %s\n",
                apps::metric_text(result.metrics, "held_out_accuracy", 4).c_str(),
                apps::metric_text(result.metrics, "loss", 4).c_str(), static_cast<unsigned long long>(result.steps),
                result.state_sha256.c_str());
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "keras: %s\n", x.what());
    return 1;
  }
}
