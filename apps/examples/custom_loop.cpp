// A custom loop, for code that controls its own loop: full-batch gradient descent where each rank has a part of the
// data and the context's all_reduce sums the gradients. The last bits of sums over ranks depend on the number of ranks.
// The result of for_each_step, which first_run.cpp shows, does not.
//   custom_loop [WORKERS [PASSES]]
#include "line.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr std::uint64_t save_every = 20;

/// Whether any rank has a stop request. All ranks must leave the loop in the same pass.
bool all_stop(troupe::train_context& ctx) {
  std::int32_t stop = ctx.stop_requested() ? 1 : 0;
  ctx.all_reduce(std::span{&stop, 1}, troupe::reduction::max);
  return stop != 0;
}

void descend_in_passes(troupe::train_context& ctx) {
  auto data = example::points{4096};
  auto first = data.size() * ctx.rank() / ctx.world_size();
  auto last = data.size() * (ctx.rank() + 1) / ctx.world_size();

  // Rank 0 draws the initial values and broadcasts them.
  std::vector<float> line(2);
  if (ctx.rank() == 0)
    std::ranges::generate(line,
                          [random = ctx.random("start")]() mutable { return static_cast<float>(random.normal()); });
  ctx.broadcast(std::span{line});
  ctx.state().track("line", line); // a resumed run restores its values here

  // Each report counts as a step: a resumed run continues after the step of its checkpoint.
  for (auto pass = ctx.restored_step() + 1; pass <= ctx.steps() && !all_stop(ctx); ++pass) {
    std::vector<float> sums(3);
    for (auto i = first; i < last; ++i)
      sums[2] += static_cast<float>(data.add_gradient(line, i, sums));
    ctx.all_reduce(std::span{sums});
    for (auto& sum : sums)
      sum /= static_cast<float>(data.size());
    example::descend(line, std::span{sums}.first(2), 0.2f);
    ctx.report({{"loss", sums[2]}, {"slope", line[0]}, {"intercept", line[1]}},
               pass % save_every == 0 ? troupe::save_checkpoint::yes : troupe::save_checkpoint::no);
  }
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", descend_in_passes};
  auto app = troupe::app{argc, argv, {train}};
  troupe::trainer_config config;
  config.run.name = "custom_loop";
  config.scaling.num_workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 2;
  config.run.steps = argc > 2 ? static_cast<std::uint64_t>(std::atoi(argv[2])) : 60;
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed) {
    std::fprintf(stderr, "custom_loop: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  }
  std::printf("y = %.3f x + %.3f after passes %llu to %llu\ncheckpoint %s\n", result.metrics["slope"],
              result.metrics["intercept"], static_cast<unsigned long long>(result.resumed_from_step) + 1,
              static_cast<unsigned long long>(result.steps), result.latest_checkpoint.c_str());
  return trainer.exit_code();
}
