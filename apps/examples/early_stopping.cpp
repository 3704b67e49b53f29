// Early stopping: the run is finished when the validation loss has not got better for a while. The decision is made of
// numbers that are the same on every worker and on every number of them, so the run ends in the same step, too. The
// checkpoint with the best validation loss is kept.
//   early_stopping [WORKERS]
#include "line.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace {

constexpr std::uint64_t training_points = 3584;
constexpr std::uint64_t validation_points = 512;
constexpr std::uint64_t evaluate_every = 20;
/// How many evaluations in a row may bring nothing.
constexpr double patience = 3;

void train(troupe::train_context& ctx) {
  auto data = example::points{training_points + validation_points};
  std::vector<float> line(2);
  ctx.state().track("line", line);
  // The lowest validation loss, and how many evaluations came after it. Tracked, so that a resumed run and a new worker
  // decide alike.
  std::vector<double> watch{std::numeric_limits<double>::infinity(), 0};
  ctx.state().track("watch", watch);

  auto plan = troupe::step_plan{
      .data = {training_points, data.fingerprint()}, .batch_samples = 64, .gradient_elements = line.size()};
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards())
      for (auto i : shard.samples())
        shard.add("loss", data.add_gradient(line, i, shard.gradient()));
    example::descend(line, step.all_reduce(), 0.05f);
    if (step.number() % evaluate_every != 0)
      return;
    auto sums = ctx.evaluate(validation_points, 1, [&](std::span<const std::uint64_t> indices, std::span<double> sum) {
      std::array<float, 2> unused{};
      for (auto i : indices)
        sum[0] += data.add_gradient(line, training_points + i, unused);
    });
    auto loss = sums[0] / validation_points;
    step.report({{"loss", step.mean_loss()}, {"validation_loss", loss}});
    if (loss < watch[0])
      watch = {loss, 0};
    else if (++watch[1] >= patience)
      step.finish(); // takes the last checkpoint and completes the run
  });
}

} // namespace

int main(int argc, char** argv) {
  auto train_line = troupe::function{"train", train};
  auto app = troupe::app{argc, argv, {train_line}};
  troupe::trainer_config config;
  config.scaling.num_workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 2;
  config.run.steps = 1'000'000; // it ends long before
  config.checkpoint.every_steps = evaluate_every;
  config.checkpoint.score_attribute = "validation_loss";
  config.checkpoint.score_order = troupe::score_mode::min;
  auto trainer = troupe::trainer{app, train_line, config};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "early_stopping: %s\n", result.reason.message.c_str());
  else if (result.best_checkpoint)
    std::printf("%s after step %llu, with the best validation loss %.6f after step %llu\nstate %s\n",
                troupe::to_string(result.status).c_str(), static_cast<unsigned long long>(result.steps),
                *result.best_checkpoint->score, static_cast<unsigned long long>(result.best_checkpoint->step.value),
                result.state_sha256.c_str());
  return trainer.exit_code();
}
