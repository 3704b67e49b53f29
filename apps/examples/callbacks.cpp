// Callbacks report what a run does, and a program can stop its run from outside: here once the loss is small enough.
//   callbacks [WORKERS]
#include "line.hpp"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  auto train = troupe::function{"train", example::train};
  auto app = troupe::app{argc, argv, {train}};
  troupe::trainer_config config;
  config.run.steps = 1'000'000;
  config.checkpoint.num_to_keep = 1;
  config.scaling.num_workers = argc > 1 ? static_cast<std::uint32_t>(std::atoi(argv[1])) : 2;
  auto trainer = troupe::trainer{app, train, config};

  troupe::run_callbacks on;
  on.started = [](const troupe::run_started& x) {
    for (const auto& worker : x.workers)
      std::printf("rank %u is process %u on %s\n", worker.rank.value, worker.pid, worker.host.c_str());
  };
  on.progress = [&trainer](const troupe::run_progress& x) {
    auto loss = x.metrics.find("loss");
    if (loss != x.metrics.end() && loss->second < 0.02)
      trainer.stop(); // finishes the step and takes a checkpoint; calling it again is harmless
  };
  on.saved = [](const troupe::checkpoint_saved& x) { std::printf("saved %s\n", x.path.c_str()); };
  on.notice = [](const troupe::run_notice& x) {
    std::fprintf(stderr, "%s%s\n", x.warning ? "warning: " : "", x.text.c_str());
  };
  on.output = [](std::uint32_t rank, const std::string& line) { std::fprintf(stderr, "%u| %s\n", rank, line.c_str()); };
  trainer.set_callbacks(on);

  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "callbacks: %s\n", result.reason.message.c_str());
  else
    std::printf("%s with loss %.4f\n", troupe::to_string(result.status).c_str(), result.metrics["loss"]);
  return trainer.exit_code();
}
