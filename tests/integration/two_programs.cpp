// A driver whose workers run the program hidden_state, which is beside it.
#include <troupe/troupe.hpp>

#include <cstdio>
#include <utility>

int main(int argc, char** argv) {
  auto app = troupe::app{argc, argv, troupe::worker_program{"hidden_state"}};
  troupe::trainer_config config;
  config.options = {{"hidden", false}, {"dies", false}, {"forgets", false}};
  config.scaling.num_workers = 2;
  config.run.steps = 12;
  auto trainer = troupe::trainer{app, app.find_function("train"), std::move(config)};
  const auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "two_programs: %s\n", result.reason.message.c_str());
  return trainer.exit_code();
}
