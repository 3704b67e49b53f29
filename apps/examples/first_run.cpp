// The smallest program that trains: it finds the line through noisy points, in as many processes as you like.
//   first_run [WORKERS]
#include <troupe/troupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

void find_line(troupe::train_context& ctx) { // runs in every worker process
  std::vector<float> x(4096), y(4096);
  auto random = troupe::random_stream{1, "points"};
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(2 * random.uniform() - 1);
    y[i] = 3 * x[i] - 1 + static_cast<float>(0.1 * random.normal());
  }
  std::vector<float> line(2); // slope and intercept: all that outlives a step
  ctx.state().track("line", line);

  auto plan =
      troupe::step_plan{.data = {x.size(), "points, first version"}, .batch_samples = 256, .gradient_elements = 2};
  ctx.for_each_step(plan, [&](troupe::step& step) {
    for (auto& shard : step.shards()) // those of the batch that are this worker's
      for (auto i : shard.samples()) {
        auto error = line[0] * x[i] + line[1] - y[i];
        shard.gradient()[0] += 2 * error * x[i];
        shard.gradient()[1] += 2 * error;
        shard.add("loss", error * error);
      }
    auto gradient = step.all_reduce(); // the same bits on every worker, and on every number of them
    for (std::size_t i = 0; i < line.size(); ++i)
      line[i] -= 0.1f * gradient[i];
    step.report({{"loss", step.mean_loss()}, {"slope", line[0]}, {"intercept", line[1]}});
  });
}

int main(int argc, char** argv) {
  auto train = troupe::function{"train", find_line};
  auto app = troupe::app{argc, argv, {train}}; // first: a worker process ends in here
  auto workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 4;
  auto trainer = troupe::trainer{app, train, {.scaling = {.num_workers = workers}, .run = {.steps = 200}}};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "first_run: %s\n", result.reason.message.c_str());
  else
    std::printf("y = %.3f x + %.3f after step %llu\nstate %s\n", result.metrics["slope"], result.metrics["intercept"],
                static_cast<unsigned long long>(result.steps), result.state_sha256.c_str());
  return trainer.exit_code();
}
