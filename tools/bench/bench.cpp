// Measures startup times and training speed, each beside its peer in the same run. See README.md.

#include "timing.hpp"

#include <charlm/corpus.hpp>
#include <charlm/gpu_network.hpp>
#include <charlm/model.hpp>
#include <charlm/optimizer.hpp>
#include <command_line.hpp>

#include <troupe/data_order.hpp>
#include <troupe/random.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace {

namespace fs = std::filesystem;
using namespace troupe::bench;

/// A training step without any work.
void train_nothing(troupe::train_context& ctx) {
  std::vector<float> weights(16);
  ctx.state().track("weights", weights);
  // Assigned field by field, because g++ 12 wrongly warns about an initialiser list (-Wmaybe-uninitialized).
  troupe::step_plan plan;
  plan.data = {64, "bench"};
  plan.batch_samples = 64;
  plan.gradient_elements = 16;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards())
      shard.add("loss", 1.0);
    step.all_reduce();
  });
}

struct language_model {
  charlm::model_shape shape = {};
  charlm::corpus text;
  charlm::model network{shape};
  charlm::model moments{shape};
  charlm::model squares{shape};

  explicit language_model(const std::string& path, const charlm::model_shape& size = {})
      : shape(size), text(troupe::value_or_throw(charlm::load_corpus(path, shape.context))) {
    auto normal = troupe::random_stream{1, "parameters"};
    network.initialise([&](std::uint64_t) { return static_cast<float>(normal.normal()); });
  }

  double forward_backward(std::span<const std::uint64_t> samples, std::span<float> gradient) {
    positions.clear();
    for (auto sample : samples)
      positions.push_back(text.training_position(sample));
    return network.forward_backward(text.bytes(), positions, gradient);
  }

  std::vector<std::uint64_t> positions;
};

constexpr std::uint64_t batch = 512;
constexpr std::uint32_t shards = 8;

/// charlm's steps under Troupe. Reports the seconds from the end of the first step to the end of the last.
void train_language(troupe::train_context& ctx) {
  auto model = language_model{ctx.options().at("text")};
  clock_type::time_point start;
  ctx.for_each_step({.data = model.text.training(),
                     .batch_samples = batch,
                     .steps = ctx.steps(),
                     .gradient_elements = model.network.parameters().size()},
                    [&](troupe::step& step) {
                      for (auto& shard : step.shards())
                        shard.add("loss", model.forward_backward(shard.samples(), shard.gradient()));
                      auto gradient = step.all_reduce();
                      charlm::adam_update(model.network.parameters(), model.moments.parameters(),
                                          model.squares.parameters(), gradient, step.id());
                      if (step.number() == 1)
                        start = clock_type::now();
                      if (step.last())
                        step.report({{"seconds", seconds_since(start)}});
                    });
}

/// The same steps in a plain loop without Troupe: one gradient buffer, shard after shard.
double bare_loop(const std::string& text, std::uint64_t steps) {
  auto model = language_model{text};
  auto order = troupe::data_order{model.text.training_samples(), batch, shards, 1};
  auto gradient = charlm::model{model.shape};
  std::vector<std::uint64_t> samples;
  clock_type::time_point start;
  for (std::uint64_t k = 1; k <= steps; ++k) {
    std::ranges::fill(gradient.parameters(), 0.0f);
    for (std::uint32_t v = 0; v < shards; ++v) {
      order.samples_of(troupe::step_id{k}, troupe::shard_id{v}, samples);
      model.forward_backward(samples, gradient.parameters());
    }
    for (auto& x : gradient.parameters())
      x /= static_cast<float>(batch);
    charlm::adam_update(model.network.parameters(), model.moments.parameters(), model.squares.parameters(),
                        gradient.parameters(), troupe::step_id{k});
    if (k == 1)
      start = clock_type::now();
  }
  return seconds_since(start);
}

/// The work of a step on a GPU, large enough that kernel launches cost little in comparison.
struct gpu_load {
  std::uint64_t batch = 65536;
  std::uint64_t hidden = 1024;

  [[nodiscard]] charlm::model_shape shape() const { return {.context = 16, .embedding = 64, .hidden = hidden}; }
};

/// charlm's steps on a GPU under Troupe. Reports as `train_language` does.
void train_language_on_gpu(troupe::train_context& ctx) {
  const auto load =
      gpu_load{ctx.options().at("batch").get<std::uint64_t>(), ctx.options().at("hidden").get<std::uint64_t>()};
  auto model = language_model{ctx.options().at("text"), load.shape()};
  charlm::gpu_network network{ctx.gpu(), ctx.gpu_stream(), model.shape, model.text, load.batch};
  network.initialise(model.network);
  for (auto& tensor : charlm::tensors_of(model.shape, network.parameters()))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : charlm::tensors_of(model.shape, network.moments(), "adam.m."))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  for (auto& tensor : charlm::tensors_of(model.shape, network.squares(), "adam.v."))
    ctx.track_on_gpu(tensor.name, tensor.values, tensor.shape);
  auto now = [&] {
    troupe::value_or_throw(ctx.gpu()->synchronize());
    return clock_type::now();
  };
  troupe::step_plan plan;
  plan.data = model.text.training();
  plan.batch_samples = load.batch;
  plan.steps = ctx.steps();
  plan.gradient_elements = model.shape.parameter_elements();
  clock_type::time_point start;
  ctx.for_each_step(troupe::device_plan{plan}, [&](troupe::device_step& step) {
    network.begin_step();
    for (auto& shard : step.shards())
      network.forward_backward(shard.samples(), shard.gradient(), shard.metric("loss"),
                               [&](std::size_t first, std::size_t count) { shard.mark_ready(first, count); });
    network.update(step.id(), step.all_reduce());
    if (step.number() == 1)
      start = now();
    if (step.last())
      step.report({{"seconds", std::chrono::duration<double>(now() - start).count()}});
  });
}

/// The same steps in a plain CUDA loop: one gradient buffer, shard after shard, with the loss read at the end of each
/// step.
double bare_gpu_loop(const std::string& text, std::uint64_t steps, const gpu_load& load) {
  using namespace troupe::collectives;
  auto model = language_model{text, load.shape()};
  auto gpu = troupe::value_or_throw(open_device(0));
  auto stream = troupe::value_or_throw(device_stream::make(gpu));
  charlm::gpu_network network{gpu, stream, model.shape, model.text, load.batch};
  network.initialise(model.network);
  auto order = troupe::data_order{model.text.training_samples(), load.batch, shards, 1};
  const auto elements = model.shape.parameter_elements();
  auto gradient = troupe::value_or_throw(device_memory::make(gpu, elements * sizeof(float)));
  auto loss = troupe::value_or_throw(device_memory::make(gpu, sizeof(double)));
  auto loss_here = troupe::value_or_throw(pinned_memory::make(gpu, sizeof(double)));
  const auto values = gradient.bytes().as<float>();
  const std::array<const std::byte*, 1> operand{gradient.address()};
  device_reduction mean;
  mean.elements = elements;
  mean.operands = operand;
  mean.out = gradient.address();
  mean.is_final = true;
  mean.divisor = load.batch;
  std::vector<std::uint64_t> samples;
  clock_type::time_point start;
  for (std::uint64_t k = 1; k <= steps; ++k) {
    network.begin_step();
    troupe::value_or_throw(stream.clear(gradient.address(), gradient.size_bytes()));
    troupe::value_or_throw(stream.clear(loss.address(), loss.size_bytes()));
    for (std::uint32_t v = 0; v < shards; ++v) {
      order.samples_of(troupe::step_id{k}, troupe::shard_id{v}, samples);
      network.forward_backward(samples, values, loss.bytes().as<double>(), [](std::size_t, std::size_t) {});
    }
    troupe::value_or_throw(gpu->reduce(mean, stream.handle()));
    network.update(troupe::step_id{k}, values);
    troupe::value_or_throw(stream.copy(loss_here.data(), loss.address(), sizeof(double)));
    troupe::value_or_throw(stream.synchronize());
    if (k == 1)
      start = clock_type::now();
  }
  return seconds_since(start);
}

struct settings {
  bool on_gpu = false;
  gpu_load gpu;
  std::string text = "/usr/share/common-licenses";
  std::uint64_t steps = 200;
  unsigned runs = 5;
};

troupe::trainer_config describe(const settings& s, std::uint32_t workers, std::uint64_t steps,
                                troupe::reduction_mode mode, bool keeps_ledger = false) {
  troupe::trainer_config config;
  config.scaling = {.num_workers = workers, .shards = shards, .use_gpu = s.on_gpu};
  config.run.storage_path = fs::temp_directory_path() / fmt::format("troupe-bench-{}", ::getpid());
  config.run.steps = steps;
  config.run.reduction = mode;
  config.run.keep_ledger = keeps_ledger;
  config.options = {{"text", s.text}, {"batch", s.gpu.batch}, {"hidden", s.gpu.hidden}};
  return config;
}

troupe::run_result completed(troupe::run_result result) {
  if (result.status != troupe::run_status::completed)
    throw troupe::exception{result.reason};
  return result;
}

troupe::run_result fit(const troupe::app& app, const troupe::function& train, const settings& s, std::uint32_t workers,
                       std::uint64_t steps, troupe::reduction_mode mode, bool keeps_ledger = false) {
  const auto config = describe(s, workers, steps, mode, keeps_ledger);
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit();
  fs::remove_all(config.run.storage_path);
  return completed(std::move(result));
}

/// From starting `n` processes of this program that exit at once to the exit of the last. This is the cost of the
/// kernel and the dynamic linker.
double spawn_and_exit(unsigned n) {
  auto start = clock_type::now();
  char program[] = "/proc/self/exe";
  char flag[] = "--exit-at-once";
  char* arguments[] = {program, flag, nullptr};
  std::vector<pid_t> children(n);
  for (auto& child : children)
    if (::posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0)
      throw std::runtime_error{"cannot start a process"};
  for (auto child : children)
    ::waitpid(child, nullptr, 0);
  return seconds_since(start);
}

void measure_start(const troupe::app& app, const troupe::function& train, const settings& s) {
  std::printf("From fit() to the first applied step (ms), starting as many processes that exit at once (ms), and from "
              "run() to the first applied step in processes that have had a run (ms)\n");
  std::printf("%8s %12s %12s %12s %12s %12s %12s\n", "workers", "median", "best", "spawn", "ratio", "warm",
              "warm/median");
  for (auto workers : {1u, 4u, 8u}) {
    std::vector<double> starts;
    std::vector<double> spawns;
    std::vector<double> warm;
    const auto config = describe(s, workers, 1, troupe::reduction_mode::exact);
    auto group = troupe::trainer{app, train, config};
    troupe::value_or_throw(group.start());
    for (auto i = 0u; i <= s.runs; ++i) {
      const auto again = completed(group.run(train));
      auto result = fit(app, train, s, workers, 1, troupe::reduction_mode::exact);
      auto spawn = spawn_and_exit(workers);
      if (i == 0)
        continue;
      warm.push_back(again.seconds_to_first_step * 1000);
      starts.push_back(result.seconds_to_first_step * 1000);
      spawns.push_back(spawn * 1000);
    }
    std::printf("%8u %12.1f %12.1f %12.1f %12.2f %12.1f %12.2f\n", workers, median(starts), std::ranges::min(starts),
                median(spawns), median(starts) / median(spawns), median(warm), median(warm) / median(starts));
    std::fflush(stdout);
  }
}

void measure_steps(const troupe::app& app, const troupe::function& train, const settings& s) {
  std::printf(
      "\ncharlm's steps per second (156,096 parameters, batch %llu, %u shards, %llu steps): exact beside fast, beside "
      "exact with a ledger, and at one worker beside a plain loop\n",
      static_cast<unsigned long long>(batch), shards, static_cast<unsigned long long>(s.steps));
  std::printf("%8s %12s %12s %16s %12s %18s %12s %16s\n", "workers", "exact", "fast", "time exact/fast", "ledger",
              "time ledger/exact", "plain loop", "time exact/loop");
  for (auto workers : {1u, 2u, 4u}) {
    std::vector<double> exact;
    std::vector<double> fast;
    std::vector<double> ledger;
    std::vector<double> bare;
    auto timed = [&](troupe::reduction_mode mode, bool keeps_ledger = false) {
      return fit(app, train, s, workers, s.steps, mode, keeps_ledger).metrics.at("seconds");
    };
    for (auto i = 0u; i < s.runs; ++i) {
      exact.push_back(timed(troupe::reduction_mode::exact));
      fast.push_back(timed(troupe::reduction_mode::fast));
      ledger.push_back(timed(troupe::reduction_mode::exact, true));
      if (workers == 1)
        bare.push_back(bare_loop(s.text, s.steps));
    }
    auto rate = [&](const std::vector<double>& seconds) { return static_cast<double>(s.steps - 1) / median(seconds); };
    std::printf("%8u %12.1f %12.1f %16.3f %12.1f %18.3f", workers, rate(exact), rate(fast),
                median(exact) / median(fast), rate(ledger), median(ledger) / median(exact));
    if (workers == 1)
      std::printf(" %12.1f %16.3f", rate(bare), median(exact) / median(bare));
    std::printf("\n");
    std::fflush(stdout);
  }
}

void measure_gpu_steps(const troupe::app& app, const troupe::function& train, const settings& s) {
  std::printf(
      "charlm's steps per second on a GPU (%zu parameters, batch %llu, %u shards, %llu steps): one worker beside "
      "a plain loop of CUDA\n",
      s.gpu.shape().parameter_elements(), static_cast<unsigned long long>(s.gpu.batch), shards,
      static_cast<unsigned long long>(s.steps));
  std::printf("%12s %12s %16s\n", "exact", "plain loop", "time exact/loop");
  std::vector<double> exact;
  std::vector<double> bare;
  for (auto i = 0u; i < s.runs; ++i) {
    exact.push_back(fit(app, train, s, 1, s.steps, troupe::reduction_mode::exact).metrics.at("seconds"));
    bare.push_back(bare_gpu_loop(s.text, s.steps, s.gpu));
  }
  auto rate = [&](const std::vector<double>& seconds) { return static_cast<double>(s.steps - 1) / median(seconds); };
  std::printf("%12.1f %12.1f %16.3f\n", rate(exact), rate(bare), median(exact) / median(bare));
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string{argv[1]} == "--exit-at-once")
    return 0;
  auto nothing = troupe::function{"nothing", train_nothing};
  auto language = troupe::function{"language", train_language};
  auto language_on_gpu = troupe::function{"language on a GPU", train_language_on_gpu};
  auto app = troupe::app{argc, argv, {nothing, language, language_on_gpu}};
  settings s;
  CLI::App cli{"Measures the time to the first step and the steps per second on this machine.", "troupe-bench"};
  cli.add_option("--text", s.text, "Text to train on")->capture_default_str();
  cli.add_option("--steps", s.steps, "Steps in each timed run, at least 2")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 30));
  cli.add_option("--runs", s.runs, "Runs of each measurement; medians are shown")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  cli.add_flag("--gpu", s.on_gpu, "Measure charlm's steps on a GPU instead, beside the same loop without Troupe");
  cli.add_option("--batch", s.gpu.batch, "With --gpu: samples in a batch")->capture_default_str();
  cli.add_option("--hidden", s.gpu.hidden, "With --gpu: units of the hidden layer, a multiple of 16")
      ->capture_default_str();
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    if (s.on_gpu) {
      measure_gpu_steps(app, language_on_gpu, s);
      return 0;
    }
    measure_start(app, nothing, s);
    measure_steps(app, language, s);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-bench: %s\n", x.what());
    return 1;
  }
}
