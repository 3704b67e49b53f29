#include <troupe/troupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

/// A training program that does, on rank 1 in step 3, what training programs should not.
namespace {

[[noreturn]] void stand_still() {
  for (;;)
    ::pause();
}

void misbehave(const std::string& how) {
  if (how == "throw")
    throw std::runtime_error{"the gradient is on holiday"};
  if (how == "exit")
    std::exit(3);
  if (how == "abort")
    std::abort();
  if (how == "sleep")
    stand_still();
}

void train(troupe::train_context& ctx) {
  auto how = ctx.config().at("how").get<std::string>();
  std::printf("rank %u of %u says hello\n", ctx.rank(), ctx.world_size());
  std::fprintf(stderr, "and goes on\n");
  std::vector<float> weights(16, 1.0f);
  ctx.state().track("weights", weights);
  troupe::step_plan plan;
  plan.data = {64, "sixty-four samples of nothing"};
  plan.batch_samples = 16;
  plan.gradient_elements = weights.size();
  ctx.for_each_step(plan, [&](troupe::step& step) {
    if (step.number() == 3 && ctx.rank() == 1)
      misbehave(how);
    if (how == "write early")
      weights[0] += 1;
    for (auto& shard : step.shards())
      for (auto sample : shard.samples())
        shard.gradient()[sample % 16] += static_cast<float>(sample);
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += gradient[i];
    if (how == "drift" && ctx.rank() == 1)
      weights[7] += 1;
    step.report({{"loss", step.mean_loss()}});
  });
}

} // namespace

// misbehaving HOW WORKERS STORAGE NAME [NODE...]
int main(int argc, char** argv) {
  // A worker that is to end before it can join: only workers get this argument.
  if (argc == 2 && std::string{argv[1]} == "end-at-once") {
    std::fprintf(stderr, "this worker has better things to do\n");
    return 7;
  }
  auto app = troupe::app{argc, argv, {{"train", train}}};
  if (argc < 5)
    return 2;
  troupe::trainer_config config;
  config.config = {{"how", argv[1]}};
  config.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[2]));
  config.scaling.placement = troupe::placement_strategy::spread;
  config.run.storage_path = argv[3];
  config.run.name = argv[4];
  config.run.steps = 6;
  config.failure.max_failures = 0;
  config.cluster.nodes = {argv + 5, argv + argc};
  if (std::string{argv[1]} == "end-at-once")
    config.arguments = {"end-at-once"};
  try {
    auto trainer = troupe::trainer{app, "train", std::move(config)};
    auto result = trainer.fit();
    if (result.status == troupe::run_status::failed)
      std::fprintf(stderr, "misbehaving: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "misbehaving: %s\n", x.what());
    return 1;
  }
}
