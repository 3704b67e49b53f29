#include <hidden_memory.hpp>

#include <troupe/troupe.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

/// A training program whose state is in memory without an address, or in ordinary memory; the result must be the same.
/// Rank 1 kills itself on request, and training is slow until it has been replaced.
namespace {

/// Larger than one message.
constexpr std::size_t elements = std::size_t{5} << 18;
constexpr std::size_t gradient_elements = 64;

void train(troupe::train_context& ctx) {
  const auto is_hidden = ctx.options().at("hidden").get<bool>();
  const auto dies = ctx.options().at("dies").get<bool>();
  std::vector<float> weights(elements, 1.0f);
  auto hidden = std::make_shared<troupe::testing::hidden_memory>(elements * sizeof(float));
  if (is_hidden) {
    hidden->assign(weights);
    ctx.state().track("weights", troupe::dtype::f32, {elements}, hidden);
  } else {
    ctx.state().track("weights", weights);
  }
  troupe::step_plan plan;
  plan.data = {64, "sixty-four samples of nothing"};
  plan.batch_samples = 16;
  plan.gradient_elements = gradient_elements;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    if (dies && step.number() == 4 && ctx.rank() == 1 && ctx.generation() == 1)
      std::raise(SIGKILL);
    if (dies && step.number() > 4 && ctx.world_size() < 3)
      std::this_thread::sleep_for(std::chrono::milliseconds{step.number() < 30 ? 10 : 500});
    if (is_hidden)
      weights = hidden->values<float>();
    for (auto& shard : step.shards())
      for (auto sample : shard.samples())
        shard.gradient()[sample % gradient_elements] += weights[sample] + static_cast<float>(sample);
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < elements; i += 997)
      weights[i] = 0.5f * weights[i] + gradient[i % gradient_elements];
    if (is_hidden)
      hidden->assign(weights);
    step.report({{"weight", weights[0]}});
  });
}

} // namespace

// hidden_state here|hidden lives|dies BACKGROUND_TRANSFER_ABOVE WORKERS STEPS STORAGE NAME
int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}};
  if (argc != 8)
    return 2;
  troupe::trainer_config config;
  config.options = {{"hidden", std::string{argv[1]} == "hidden"}, {"dies", std::string{argv[2]} == "dies"}};
  config.failure.background_transfer_above_bytes = std::strtoull(argv[3], nullptr, 10);
  config.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[4]));
  config.run.steps = std::strtoull(argv[5], nullptr, 10);
  config.run.storage_path = argv[6];
  config.run.name = argv[7];
  auto trainer = troupe::trainer{app, train, std::move(config)};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "hidden_state: %s\n", result.reason.message.c_str());
  return trainer.exit_code();
}
