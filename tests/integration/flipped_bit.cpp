#include <troupe/troupe.hpp>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

/// A training program with a gradient of three tensors, one bit of which is flipped in the first shard of one rank in
/// one step. A file "scale" in the working directory changes the gradient.
namespace {

void train(troupe::train_context& ctx) {
  const auto flip_step = ctx.options().at("step").get<std::uint64_t>();
  const auto flip_rank = ctx.options().at("rank").get<std::uint32_t>();
  const auto flip_element = ctx.options().at("element").get<std::uint64_t>();
  const auto flipped = std::uint32_t{1} << ctx.options().at("bit").get<unsigned>();
  auto scale = 0.001f;
  std::ifstream{"scale"} >> scale;
  auto inner = std::vector<float>(5000, 1.0f);
  auto middle = std::vector<float>(300, 1.0f);
  auto outer = std::vector<float>(9000, 1.0f);
  ctx.state().track(ctx.config().at("first").get<std::string>(), inner);
  ctx.state().track("middle", middle);
  ctx.state().track("outer", outer);
  ctx.name_gradient({{"inner", 0, 5000}, {"middle", 5000, 300}, {"outer", 5300, 9000}});
  troupe::step_plan plan;
  plan.data = {640, "six hundred and forty samples of nothing"};
  plan.batch_samples = 32;
  plan.gradient_elements = inner.size() + middle.size() + outer.size();
  plan.metrics = {"loss"};
  ctx.for_each_step(plan, [&](troupe::step& step) {
    auto flips = step.number() == flip_step && ctx.rank() == flip_rank;
    for (auto& shard : step.shards()) {
      const auto gradient = shard.gradient();
      for (auto sample : shard.samples())
        for (std::size_t i = 0; i < gradient.size(); ++i)
          gradient[i] += static_cast<float>((sample + i) % 17) * 0.01f + 1.0f;
      shard.add("loss", 1.0);
      if (std::exchange(flips, false))
        gradient[flip_element] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(gradient[flip_element]) ^ flipped);
    }
    const auto mean = step.all_reduce();
    auto next = mean.begin();
    for (auto* tensor : {&inner, &middle, &outer})
      for (auto& each : *tensor)
        each -= scale * *next++;
  });
}

} // namespace

// flipped_bit WORKERS STORAGE NAME STEP RANK ELEMENT BIT [FROM]; step 0 flips nothing. With the state of FROM, a run,
// in which a tensor has another name.
int main(int argc, char** argv) {
  auto app = troupe::app{argc, argv, {troupe::function{"train", train}}};
  if (argc < 8)
    return 2;
  troupe::trainer_config config;
  config.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[1]));
  config.run.storage_path = argv[2];
  config.run.name = argv[3];
  config.run.steps = 12;
  config.run.keep_ledger = true;
  config.checkpoint.every_steps = 5;
  config.checkpoint.max_in_flight = 0;
  config.config = {{"first", argc > 8 ? "core" : "inner"}};
  config.options = {{"step", std::atoi(argv[4])},
                    {"rank", std::atoi(argv[5])},
                    {"element", std::atoi(argv[6])},
                    {"bit", std::atoi(argv[7])}};
  if (argc > 8) {
    config.load_checkpoint = argv[8];
    config.load.renames = {{"inner", "core"}};
  }
  auto trainer = troupe::trainer{app, app.find_function("train"), std::move(config)};
  const auto result = trainer.fit();
  if (result.status != troupe::run_status::completed)
    std::fprintf(stderr, "flipped_bit: %s\n", result.reason.message.c_str());
  return trainer.exit_code();
}
