#include "driver/run_naming.hpp"
#include "process/debugger.hpp"
#include <troupe/config.hpp>
#include <troupe/runtime/job_variable.hpp>

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

TEST_CASE("a job fills in what its program leaves open, and its program's own settings stay") {
  const auto job = job_context{"night",
                               "a:4000,b:4000",
                               true,
                               "/keys",
                               "/mirror",
                               std::chrono::hours{2},
                               std::chrono::minutes{1},
                               std::chrono::minutes{3},
                               resume_mode::restart,
                               {"slurm", "17", "f00d", {}}};
  const auto read = parse_job_context(to_text(job));
  REQUIRE(read);
  CHECK(*read == job);
  trainer_config open;
  REQUIRE(complete(open, *read));
  CHECK(open.run.name == "night");
  CHECK(open.cluster.nodes == std::vector<std::string>{"a:4000", "b:4000"});
  CHECK(open.cluster.insecure);
  CHECK(open.checkpoint.mirror.to == "/mirror");
  CHECK(open.run.time_limit == std::chrono::hours{2});
  CHECK(open.run.lock_wait == std::chrono::minutes{3});
  CHECK(open.run.resume == resume_mode::restart);
  CHECK(open.run.job == job.job);
  trainer_config own;
  own.run.name = "mine";
  own.run.resume = resume_mode::required;
  own.cluster.nodes = {"c:4000"};
  own.checkpoint.mirror.to = "/elsewhere";
  REQUIRE(complete(own, *read));
  CHECK(own.run.name == "mine");
  CHECK(own.run.resume == resume_mode::required);
  CHECK(own.cluster.nodes == std::vector<std::string>{"c:4000"});
  CHECK(own.cluster.keys == "/keys");
  CHECK(own.checkpoint.mirror.to == "/elsewhere");
  CHECK(own.run.job == job.job);
}

TEST_CASE("what is no job's context is refused by the variable's name") {
  for (const auto* text : {"", "{}", "[]", R"({"name":1})"}) {
    const auto read = parse_job_context(text);
    REQUIRE_FALSE(read);
    CHECK(read.error().message.starts_with("TROUPE_JOB is for programs that `troupe submit` starts"));
  }
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
