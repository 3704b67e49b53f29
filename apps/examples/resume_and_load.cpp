// Two ways to continue from a checkpoint: resume the same run, on another number of workers, or start a new run with
// the state of the first.
//   resume_and_load
#include "line.hpp"

#include <cstdio>

namespace {

troupe::run_result fit(const troupe::app& app, const troupe::function& train, const troupe::trainer_config& config) {
  auto trainer = troupe::trainer{app, train, config};
  auto result = trainer.fit_or_throw();
  std::printf("%-8s steps %llu to %llu on %zu workers: loss %.6f, state %.16s\n", result.name.c_str(),
              static_cast<unsigned long long>(result.resumed_from_step), static_cast<unsigned long long>(result.steps),
              result.workers.size(), result.metrics["loss"], result.state_sha256.c_str());
  return result;
}

/// The name identifies a run. The settings changed below may differ when a run is resumed.
void resume_and_load(const troupe::app& app, const troupe::function& train) {
  troupe::trainer_config config;
  config.run.name = "whole";
  config.run.steps = 100;
  config.run.resume = troupe::resume_mode::never; // an old run of this name is an error
  config.checkpoint.every_steps = 25;
  config.scaling.num_workers = 3;
  auto whole = fit(app, train, config);

  config.run.name = "resumed";
  config.run.steps = 50;
  fit(app, train, config);
  config.run.steps = 100;
  config.run.resume = troupe::resume_mode::required; // no checkpoint is an error
  config.scaling.num_workers = 2;
  auto resumed = fit(app, train, config);
  std::printf("a run that stopped half-way is %s\n",
              resumed.state_sha256 == whole.state_sha256 ? "identical" : "DIFFERENT");

  // A new run counts from step 1 and may have another configuration.
  config.run.name = "tuned";
  config.run.resume = troupe::resume_mode::never;
  config.config = {{"rate", 0.01}};
  auto trainer = troupe::trainer{app, train, config};
  trainer.load_checkpoint(whole.latest_checkpoint);
  auto tuned = trainer.fit_or_throw();
  std::printf("tuned    from %s: loss %.6f\n", whole.latest_checkpoint.c_str(), tuned.metrics["loss"]);
  if (resumed.state_sha256 != whole.state_sha256)
    throw troupe::exception{troupe::errc::internal,
                            "the state of the resumed run differs from that of the uninterrupted one"};
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", example::train};
  auto app = troupe::app{argc, argv, {train}};
  try {
    resume_and_load(app, train);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "resume_and_load: %s\n", x.what());
    return 1;
  }
}
