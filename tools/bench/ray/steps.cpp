// Troupe's side of ray/run; peer.py does the same under Ray Train. Every step sleeps, sums a gradient over the workers,
// applies it, and appends a line "RANK PID STEP TIME" to a file of its process. See README.md.

#include <command_line.hpp>

#include <troupe/troupe.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void train(troupe::train_context& ctx) {
  const auto& options = ctx.options();
  const auto nap = std::chrono::duration<double, std::milli>{options.at("step_ms").get<double>()};
  const auto report_every = options.at("report_every").get<std::uint64_t>();
  std::ofstream log{options.at("directory").get<std::string>() + "/log-" + std::to_string(::getpid())};
  log.precision(17);
  std::vector<float> weights(options.at("elements").get<std::size_t>());
  ctx.state().track("weights", weights);
  troupe::step_plan plan;
  plan.data = {1024, "steps"};
  plan.batch_samples = 64;
  plan.gradient_elements = weights.size();
  ctx.for_each_step(plan, [&](troupe::step& step) {
    std::this_thread::sleep_for(nap);
    for (auto& shard : step.shards())
      std::ranges::fill(shard.gradient(), 1.0F);
    const auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += gradient[i];
    log << ctx.rank() << ' ' << ::getpid() << ' ' << step.number() << ' ' << unix_time() << std::endl;
    if (step.number() % report_every == 0)
      step.report({{"weight", weights[0]}});
  });
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}};
  std::uint32_t workers = 2;
  std::uint64_t steps = 100;
  std::uint64_t elements = 156'096;
  std::uint64_t checkpoint_every = 0;
  std::uint64_t report_every = 1;
  double step_ms = 0;
  std::string directory;
  CLI::App line{"Troupe's side of tools/bench/ray/run, which explains the measurement."};
  line.add_option("--workers", workers, "Number of workers")->capture_default_str();
  line.add_option("--steps", steps, "Number of steps")->capture_default_str();
  line.add_option("--step-ms", step_ms, "Milliseconds that each step sleeps")->capture_default_str();
  line.add_option("--elements", elements, "Elements of the gradient and of the state")->capture_default_str();
  line.add_option("--checkpoint-every", checkpoint_every, "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  line.add_option("--report-every", report_every, "Steps")
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  line.add_option("--directory", directory, "Directory for all files")->required()->check(CLI::ExistingDirectory);
  if (const auto code = troupe::apps::parse_command_line(line, argc, argv))
    return *code;
  troupe::trainer_config config;
  config.scaling.num_workers = workers;
  config.run.name = "steps";
  config.run.storage_path = directory;
  config.run.steps = steps;
  config.checkpoint.every_steps = checkpoint_every;
  config.options = {
      {"step_ms", step_ms}, {"elements", elements}, {"report_every", report_every}, {"directory", directory}};
  auto trainer = troupe::trainer{app, train, config};
  std::ofstream{directory + "/fit"} << std::fixed << unix_time();
  const auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "troupe-steps: %s\n", result.reason.message.c_str());
  return trainer.exit_code();
}
