#include <troupe/troupe.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

/// A training program that misbehaves on rank 1, or the only one in the driver's process, in step 3. With "heal" in
/// front it does so in the first generation only, and the run is expected to survive. "throw later" throws in step 5,
/// "throw everywhere" on all ranks, and rank 1's loss is not a number from step 4 on if it is to "diverge", or to
/// "diverge and end"; these are otherwise the same as "behave".
namespace {

[[noreturn]] void stand_still() {
  for (;;)
    ::pause();
}

/// Is slow, but sends heartbeats.
void dawdle(troupe::train_context& ctx) {
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    ctx.heartbeat();
  }
}

/// Prints 100 MB as fast as it can.
void flood() {
  const auto line = std::string(99, '.') + "\n";
  for (int i = 0; i < 1'000'000; ++i)
    std::fputs(line.c_str(), stdout);
}

void misbehave(troupe::train_context& ctx, const std::string& how) {
  if (how == "flood")
    flood();
  if (how == "dawdle")
    dawdle(ctx);
  // Longer than a collective operation may take, but shorter than a rank may compute.
  if (how == "linger")
    std::this_thread::sleep_for(std::chrono::milliseconds{800});
  if (how == "throw" || how == "throw always")
    throw std::runtime_error{"the gradient is on holiday"};
  if (how == "exit")
    std::exit(3);
  if (how == "crash")
    std::raise(SIGSEGV);
  if (how == "abort")
    std::abort();
  if (how == "sleep" || how == "loop")
    stand_still();
}

/// The same with a custom loop that takes a checkpoint after every second pass.
void train_plain(troupe::train_context& ctx) {
  std::vector<float> weights(16, 1.0f);
  ctx.state().track("weights", weights);
  for (auto pass = ctx.restored_step() + 1; pass <= ctx.steps(); ++pass) {
    if (pass == 4 && ctx.rank() == 1 && ctx.attempt() == 1)
      std::raise(SIGKILL);
    std::vector<float> sums(16, static_cast<float>(pass));
    ctx.all_reduce(std::span{sums});
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += sums[i];
    ctx.report({{"pass", static_cast<double>(pass)}},
               pass % 2 == 0 ? troupe::save_checkpoint::yes : troupe::save_checkpoint::no);
  }
}

/// One loop for each epoch, with an evaluation between them. An epoch is shorter than the start of a worker.
void train_epochs(troupe::train_context& ctx) {
  std::vector<float> weights(16, 1.0f);
  ctx.state().track("weights", weights);
  constexpr std::uint64_t steps_of_epoch = 4;
  troupe::step_plan plan;
  plan.data = {64, "sixty-four samples of nothing"};
  plan.batch_samples = 16;
  plan.gradient_elements = weights.size();
  auto rate = 1.0;
  for (std::uint64_t epoch = 1; epoch <= 60; ++epoch) {
    plan.steps = epoch * steps_of_epoch;
    ctx.for_each_step(plan, [&](troupe::step& step) {
      if (epoch == 2 && ctx.rank() == 1 && ctx.generation() == 1)
        std::raise(SIGKILL);
      for (auto& shard : step.shards()) {
        // Without the lost worker's successor there is time for it to join, on a busy machine as well.
        std::this_thread::sleep_for(std::chrono::milliseconds{ctx.generation() == 2 ? 20 : 1});
        for (auto sample : shard.samples())
          shard.gradient()[sample % 16] += static_cast<float>(sample);
      }
      auto gradient = step.all_reduce();
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] += static_cast<float>(rate) * gradient[i];
    });
    // The result of an evaluation between two loops affects the next one, so a joiner needs it, too.
    rate = ctx.evaluate(64, 1, [&](std::span<const std::uint64_t> samples, std::span<double> sums) {
      for (auto sample : samples)
        sums[0] += weights[sample % 16] / static_cast<float>(1000 * epoch);
    })[0];
  }
}

/// The score after a step, if it counts: the best, that is the least, are those of steps 2 and 4.
double score_after(std::uint64_t step) {
  return std::array{0.0, 5.0, 1.0, 4.0, 2.0, 3.0, 6.0}.at(step);
}

void train(troupe::train_context& ctx) {
  auto heals = ctx.config().at("heal").get<bool>();
  auto how = ctx.config().at("how").get<std::string>();
  std::printf("rank %u of %u says hello\n", ctx.rank(), ctx.world_size());
  std::fprintf(stderr, "and goes on\n");
  std::vector<float> weights(16, 1.0f);
  ctx.state().track("weights", weights);
  troupe::step_plan plan;
  plan.data = {64, "sixty-four samples of nothing"};
  plan.batch_samples = 16;
  plan.gradient_elements = weights.size();
  if (how == "no batch")
    plan.batch_samples = 0;
  ctx.for_each_step(plan, [&](troupe::step& step) {
    if (step.number() == 5 && how == "throw everywhere")
      throw std::runtime_error{"the gradient is on holiday"};
    if (step.number() == 3 && (how == "crash" || how == "loop"))
      misbehave(ctx, how);
    if (step.number() == 3 && ctx.rank() == ctx.config().at("culprit").get<unsigned>() &&
        (!heals || ctx.generation() == 1 || how == "throw always"))
      misbehave(ctx, how);
    if (step.number() == 5 && ctx.rank() == 1 && ctx.options().at("throws").get<bool>())
      throw std::runtime_error{"the gradient is on holiday"};
    if (how == "write early" || (how == "write early later" && step.number() >= 3))
      weights[0] += 1;
    for (auto& shard : step.shards()) {
      for (auto sample : shard.samples())
        shard.gradient()[sample % 16] += static_cast<float>(sample);
      if (step.number() >= 4 && ctx.rank() == 1 && ctx.options().at("diverges").get<bool>())
        shard.add("loss", std::numeric_limits<double>::quiet_NaN());
    }
    auto gradient = step.all_reduce();
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += gradient[i];
    if (how == "drift" && ctx.rank() == 1)
      weights[7] += 1;
    step.report({{"loss", step.mean_loss()}, {"score", score_after(step.number())}});
    if (!how.starts_with("finish") || step.number() != 4)
      return;
    // The others have said that the run is finished, or are about to.
    if (how == "finish and die" && ctx.rank() == 1 && ctx.generation() == 1)
      std::raise(SIGKILL);
    if (how != "finish apart" || ctx.rank() != 1)
      step.finish();
  });
}

} // namespace

// misbehaving HOW WORKERS STORAGE NAME [NODE...]
int main(int argc, char** argv) {
  // Only workers get this argument, and end before they join.
  if (argc == 2 && std::string{argv[1]} == "end-at-once") {
    std::fprintf(stderr, "this worker has better things to do\n");
    return 7;
  }
  auto app = troupe::app{argc,
                         argv,
                         {troupe::function{"train", train}, troupe::function{"plain", train_plain},
                          troupe::function{"epochs", train_epochs}}};
  if (argc < 5)
    return 2;
  troupe::trainer_config config;
  auto how = std::string{argv[1]};
  auto heals = how.starts_with("heal ");
  if (heals)
    how.erase(0, 5);
  if (how == "epochs staged") {
    how = "epochs";
    config.failure.background_transfer_above_bytes = 0;
  }
  const auto workers = static_cast<std::uint32_t>(std::atoi(argv[2]));
  const auto survives = heals || how == "crash" || how == "loop" || how == "throw everywhere";
  const auto throws_later = how == "throw later";
  const auto diverges = how.starts_with("diverge");
  if (diverges)
    config.checkpoint.every_steps = 3;
  if (how == "diverge and end")
    config.failure.not_finite = troupe::not_finite_mode::end_run;
  if (how == "keep the best") {
    config.checkpoint.every_steps = 1;
    config.checkpoint.num_to_keep = 1;
    config.checkpoint.score_attribute = "score";
    config.checkpoint.score_order = troupe::score_mode::min;
    config.checkpoint.num_best_to_keep = 2;
  }
  config.config = {
      {"how", throws_later || diverges ? "behave" : how}, {"heal", heals}, {"culprit", workers == 0 ? 0 : 1}};
  config.options = {{"throws", throws_later}, {"diverges", diverges}};
  config.scaling.num_workers = workers;
  config.scaling.placement = troupe::placement_strategy::spread;
  config.run.storage_path = argv[3];
  config.run.name = argv[4];
  config.run.steps = 6;
  // Each line is durable before the program continues.
  config.checkpoint.max_in_flight = 0;
  if (heals || how == "loop") {
    config.failure.report_after = std::chrono::milliseconds{500};
    config.failure.replace_after = std::chrono::milliseconds{how == "linger" ? 60'000 : 3'000};
    config.run.collective_timeout = std::chrono::milliseconds{200};
  } else if (!survives) {
    config.failure.max_failures = 0;
  }
  config.cluster.nodes = {argv + 5, argv + argc};
  if (std::string{argv[1]} == "end-at-once")
    config.arguments = {"end-at-once"};
  try {
    auto trainer =
        troupe::trainer{app, app.find_function(how == "plain" || how == "epochs" ? how : "train"), std::move(config)};
    if (heals) {
      troupe::run_callbacks callbacks;
      callbacks.notice = [](const troupe::run_notice& x) { std::fprintf(stderr, "%s\n", x.text.c_str()); };
      trainer.set_callbacks(std::move(callbacks));
    }
    trainer.fit_or_throw();
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "misbehaving: %s\n", x.what());
    return 1;
  }
}
