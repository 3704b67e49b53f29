#include "driver/run_naming.hpp"
#include "process/debugger.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

namespace troupe::runtime {

TEST_CASE("the command that repeats a run in one process has its arguments, quoted where a shell needs it") {
  CHECK(in_one_process({"./train", "--workers", "4", "--text=a b", "it's"}, "my run") ==
        "\nRepeat it in one process:\n"
        "  TROUPE_IN_PROCESS='my run' ./train --workers 4 '--text=a b' 'it'\\''s'\n"
        "or in a debugger:\n"
        "  TROUPE_IN_PROCESS='my run' gdb --args ./train --workers 4 '--text=a b' 'it'\\''s'");
  CHECK(own_arguments().size() >= 1);
}

TEST_CASE("a run that the environment names trains in the driver's process, and no other does") {
  ::setenv(in_process_variable, "a", 1);
  const auto obeying = [](const std::string& name) {
    trainer_config config;
    config.run.name = name;
    config.run.resume = resume_mode::restart;
    config.run.debug_rank = 1;
    config.scaling.num_workers = 4;
    config.cluster.nodes = {"host:4800"};
    obey_in_process_variable(config);
    return config;
  };
  for (const auto* name : {"a", ""}) {
    const auto config = obeying(name);
    CHECK(config.run.name == "a");
    CHECK(config.run.resume == resume_mode::automatic);
    CHECK_FALSE(config.run.debug_rank);
    CHECK(config.scaling.num_workers == worker_range{0});
    CHECK(config.cluster.nodes.empty());
  }
  CHECK(obeying("b").scaling.num_workers == worker_range{4});
  CHECK(obeying("b").run.resume == resume_mode::restart);
  ::unsetenv(in_process_variable);
  CHECK(obeying("a").scaling.num_workers == worker_range{4});
}

TEST_CASE("a worker's name says which step it has committed, unless the number may be cut off") {
  CHECK(committed_step_in(worker_name({3}, {119}, "run")) == step_id{119});
  CHECK(committed_step_in(worker_name({3}, {119}, "run").substr(0, 15)) == step_id{119});
  CHECK(committed_step_in("r1023 s10000000") == std::nullopt);
  CHECK(committed_step_in("r1023 s1000000 ") == step_id{1000000});
  CHECK(committed_step_in("charlm") == std::nullopt);
  CHECK(committed_step_in("") == std::nullopt);
}

} // namespace troupe::runtime
