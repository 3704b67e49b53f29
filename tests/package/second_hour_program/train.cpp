// Fits a curve through noisy points with a small network, until the validation loss gets no better.
#include <troupe/troupe.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace {

constexpr auto usage = R"(usage: train [OPTION VALUE]...
  --workers N              processes that train (2)
  --steps N                the last step, if the run does not stop before (1000)
  --name NAME              the run, which is resumed if it exists (a new one each time)
  --allow-changed program  go on with a run that another build of this program began
)";

constexpr std::uint64_t training_points = 2048;
constexpr std::uint64_t validation_points = 512;
/// Evaluations and checkpoints come together, so that each checkpoint has a score.
constexpr std::uint64_t evaluate_every = 25;
/// The training ends after so many evaluations in a row that were not better by a hundredth.
constexpr double patience = 2;

/// y = |x| with noise.
struct point_set {
  point_set() {
    auto random = troupe::random_stream{1, "points"};
    for (std::uint64_t i = 0; i < training_points + validation_points; ++i) {
      x.push_back(static_cast<float>(2 * random.uniform() - 1));
      y.push_back(std::abs(x.back()) + static_cast<float>(0.2 * random.uniform() - 0.1));
    }
  }

  std::vector<float> x, y;
};

/// One hidden layer.
struct network {
  static constexpr std::size_t units = 16;

  explicit network(troupe::random_stream random) : weights(units), biases(units), outputs(units) {
    for (auto* tensor : {&weights, &biases, &outputs})
      for (auto& each : *tensor)
        each = static_cast<float>(random.uniform() - 0.5);
  }

  /// Adds the gradient of the squared error to `gradient`; returns the squared error.
  double add_gradient(float x, float y, std::span<float> gradient) const {
    std::array<float, units> active{};
    auto error = -y;
    for (std::size_t i = 0; i < units; ++i) {
      active[i] = std::max(weights[i] * x + biases[i], 0.0f);
      error += outputs[i] * active[i];
    }
    for (std::size_t i = 0; i < units; ++i) {
      auto inner = active[i] > 0 ? 2 * error * outputs[i] : 0;
      gradient[i] += inner * x;
      gradient[units + i] += inner;
      gradient[2 * units + i] += 2 * error * active[i];
    }
    return error * error;
  }

  void descend(std::span<const float> gradient, float rate) {
    for (std::size_t i = 0; i < units; ++i) {
      weights[i] -= rate * gradient[i];
      biases[i] -= rate * gradient[units + i];
      outputs[i] -= rate * gradient[2 * units + i];
    }
  }

  std::vector<float> weights, biases, outputs;
};

void train(troupe::train_context& ctx) {
  auto points = point_set{};
  auto net = network{ctx.random("network")};
  ctx.state().track("weights", net.weights);
  ctx.state().track("biases", net.biases);
  ctx.state().track("outputs", net.outputs);
  constexpr auto n = network::units;
  ctx.name_gradient({{"weights", 0, n}, {"biases", n, n}, {"outputs", 2 * n, n}});
  // The lowest validation loss, and how many evaluations have passed since.
  auto watch = std::array{std::numeric_limits<double>::infinity(), 0.0};
  ctx.state().track("watch", watch);

  auto plan = troupe::step_plan{
      .data = {training_points, "|x| with noise, first version"}, .batch_samples = 128, .gradient_elements = 3 * n};
  ctx.for_each_step(plan, [&](troupe::step& step) {
    auto rate = step.number() <= 50 ? 0.2f : 0.1f;
    for (auto& shard : step.shards()) {
      for (auto i : shard.samples())
        shard.add("loss", net.add_gradient(points.x[i], points.y[i], shard.gradient()));
    }
    net.descend(step.all_reduce(), rate);
    if (step.number() % evaluate_every != 0)
      return step.report({{"loss", step.mean_loss()}});
    auto sums = ctx.evaluate(validation_points, 1, [&](std::span<const std::uint64_t> indices, std::span<double> sum) {
      std::array<float, 3 * n> unused{};
      for (auto i : indices)
        sum[0] += net.add_gradient(points.x[training_points + i], points.y[training_points + i], unused);
    });
    auto loss = sums[0] / validation_points;
    step.report({{"loss", step.mean_loss()}, {"validation_loss", loss}});
    watch = loss < 0.99 * watch[0] ? std::array{loss, 0.0} : std::array{watch[0], watch[1] + 1};
    if (watch[1] >= patience)
      step.finish();
  });
}

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "train: %s\n%s", why.c_str(), usage);
  std::exit(2);
}

std::uint32_t number(const std::string& option, const std::string& text) {
  std::uint32_t result = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (code != std::errc{} || end != text.data() + text.size())
    refuse(option + " takes a number, and '" + text + "' is none");
  return result;
}

troupe::trainer_config read_options(int argc, char** argv) {
  troupe::trainer_config config;
  config.scaling.num_workers = 2;
  config.run.steps = 1000;
  for (auto i = 1; i < argc; i += 2) {
    auto option = std::string{argv[i]};
    auto value = std::string{i + 1 < argc ? argv[i + 1] : ""};
    if (option == "--workers")
      config.scaling.num_workers = number(option, value);
    else if (option == "--steps")
      config.run.steps = number(option, value);
    else if (option == "--name" && !value.empty())
      config.run.name = value;
    else if (option == "--allow-changed" && value == "program")
      config.run.allow_changed.program = true;
    else
      refuse("cannot make sense of '" + option + " " + value + "'");
  }
  return config;
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}}; // a worker process ends in here
  auto config = read_options(argc, argv);
  config.run.keep_ledger = true;
  config.checkpoint.every_steps = evaluate_every;
  config.checkpoint.score_attribute = "validation_loss";
  config.checkpoint.score_order = troupe::score_mode::min;
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "train: %s\n", result.reason.message.c_str());
  else
    std::printf("%s after step %llu, validation loss %.6f\nstate %s\n", troupe::to_string(result.status).c_str(),
                static_cast<unsigned long long>(result.steps), result.metrics["validation_loss"],
                result.state_sha256.c_str());
  return trainer.exit_code();
}
