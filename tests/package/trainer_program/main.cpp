#include <troupe/troupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

/// Finds the mean of synthetic numbers by gradient descent.
void train(troupe::train_context& ctx) {
  std::vector<float> data(1000);
  auto random = troupe::random_stream{7, "data"};
  for (auto& x : data)
    x = static_cast<float>(random.uniform());
  std::vector<float> mean(1);
  ctx.state().track("mean", mean);
  ctx.for_each_step({.data = {data.size(), "uniform"}, .batch_samples = 100, .gradient_elements = 1},
                    [&](troupe::step& step) {
                      for (auto& shard : step.shards())
                        for (auto i : shard.samples()) {
                          shard.gradient()[0] += mean[0] - data[i];
                          shard.add("loss", (mean[0] - data[i]) * (mean[0] - data[i]));
                        }
                      mean[0] -= 0.5f * step.all_reduce()[0];
                      step.report({{"loss", step.mean_loss()}});
                    });
}

// trainer_program WORKERS
int main(int argc, char** argv) {
  auto train = troupe::function{"train", ::train};
  auto app = troupe::app{argc, argv, {train}};
  auto workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 1;
  auto name = "mean-" + std::to_string(workers);
  auto trainer = troupe::trainer{app, train, {.scaling = {.num_workers = workers}, .run = {.name = name, .steps = 20}}};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "%s\n", result.reason.message.c_str());
  std::printf("state %s\n", result.state_sha256.c_str());
  return trainer.exit_code();
}
