#include "torch_runs.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstdio>

using namespace troupe::testing;
using nlohmann::json;

TEST_CASE("anything that would make replicas differ is refused with what to do") {
  torch_runs here;
  struct misuse {
    const char* name;
    json wanted;
    const char* text;
  };
  const misuse cases[] = {
      {"lbfgs", {{"config", {{"optimizer", "lbfgs"}}}}, "use Adam, AdamW, SGD, RMSprop or Adagrad"},
      {"framework", {{"function", "without_framework"}}, "register its framework with the training function"},
      {"double", {{"options", {{"misuse", "double"}}}}, "'convolution.weight' is of LibTorch's type Double"},
      {"foreign",
       {{"options", {{"misuse", "foreign"}}}},
       "parameter 0 of the optimizer's group 0 is not in the module"},
      {"moved", {{"options", {{"misuse", "moved"}}}}, "tensor 'hidden.weight' has been moved since it was tracked"},
      {"twice", {{"options", {{"misuse", "two backwards"}}}}, "set replica_options.overlap to false"},
      {"gradients", {{"options", {{"misuse", "new gradients"}}}}, "the gradient of 'output.bias' was replaced"},
      {"no-steps", {{"options", {{"misuse", "no steps"}}}}, "takes a step after every 1 or more steps"},
      {"late", {{"options", {{"misuse", "late schedule"}}}}, "replica.schedule was called after the first step"},
      {"rate", {{"workers", 2}, {"options", {{"misuse", "rate of rank 1"}}}}, "tensor 'optimizer/options' on rank 1"},
      {"buffers", {{"options", {{"misuse", "buffers"}}}}, "norm.running_mean"}};
  for (const auto& each : cases) {
    auto [status, result, err] = here.run(each.name, each.wanted);
    INFO(std::string{each.name} << ": " << err);
    CHECK(status == exit_status{1, {}});
    CHECK(err.find(each.text) != std::string::npos);
  }
}

TEST_CASE("a gradient that depends on the rank is detected, with the parameter's name and LibTorch's kernels") {
  torch_runs here;
  auto wanted = json{{"workers", 2}, {"steps", 8}, {"options", {{"misuse", "rank"}, {"overlap", false}}}};
  CHECK(here.run("unseen", wanted).status == exit_status{0, {}});
  wanted["verify"] = 2;
  auto seen = here.run("seen", wanted);
  INFO(seen.err);
  CHECK(seen.status == exit_status{1, {}});
  CHECK(seen.result["error"]["code"] == "mismatch");
  CHECK(seen.err.find("step 2, shard 0: rank 0, whose it is, and rank 1 have computed it, and the results differ in "
                      "the gradient of 'hidden.bias' (32 of 32 numbers, by 0.001 at most). ") != std::string::npos);
  CHECK(seen.err.find("libtorch: blas ") != std::string::npos);
  CHECK(seen.err.find("threads 1") != std::string::npos);
}

TEST_CASE("several backward passes per shard are allowed if the reduction waits for them") {
  torch_runs here;
  CHECK(here.run("twice", {{"workers", 2}, {"options", {{"misuse", "two backwards"}, {"overlap", false}}}}).status ==
        exit_status{0, {}});
}

TEST_CASE("the memory of tensors stays with the process from step to step") {
  torch_runs here;
  auto [status, result, err] = here.run("memory", {{"function", "use_memory"}, {"shards", 1}, {"steps", 10}});
  INFO(err);
  REQUIRE(status == exit_status{0, {}});
  // The tensors of a step have 30,720 pages.
  CHECK(result["metrics"]["faults"].get<double>() < 3000);
}

TEST_CASE("a program may make several frameworks, and their GPU fingerprints do not count without a GPU") {
  torch_runs here;
  CHECK(here.trained("one", {{"steps", 4}}) == here.trained("other", {{"steps", 4}, {"function", "other_framework"}}));
  auto latest = troupe::serialization::open_latest(here.scratch.path() / "other" / "checkpoints");
  REQUIRE(latest);
  auto numerics = json::parse(latest->found.content().numerics_fingerprint_json);
  CHECK(numerics.contains("libtorch.version"));
  CHECK(numerics["talker.kind"] == "a");
  CHECK_FALSE(numerics.contains("talker.model"));
}

TEST_CASE("a weight shared by two layers is loaded from a checkpoint, which stores it once") {
  torch_runs here;
  auto trained = here.run("tied", {{"function", "tied"}, {"workers", 2}, {"steps", 5}});
  INFO(trained.err);
  REQUIRE(trained.status == exit_status{0, {}});
  auto loaded = here.run("tied", {{"predict", "tied"}});
  INFO(loaded.err);
  CHECK(loaded.status == exit_status{0, {}});
  CHECK(std::stod(loaded.err.substr(loaded.err.rfind("sum ") + 4)) == trained.result["metrics"]["sum"].get<double>());
}

#ifndef TROUPE_TORCH_HAS_BLAS
TEST_CASE("the slow reference BLAS is reported once per host, and no other is") {
  torch_runs here;
  const auto directory = std::filesystem::path{"/usr/lib/x86_64-linux-gnu/blas"};
  const auto text = std::string{"libtorch: matrix products use the reference BLAS"};
  if (!std::filesystem::exists(directory / "libblas.so.3")) {
    std::puts("SKIP: Debian's reference BLAS is not installed");
    return;
  }
  auto slow = here.run("slow", {{"workers", 2}, {"steps", 1}}, {{"LD_LIBRARY_PATH", directory.string()}});
  CHECK(slow.status == exit_status{0, {}});
  auto found = slow.err.find(text);
  CHECK(found != std::string::npos);
  CHECK(slow.err.find(text, found + 1) == std::string::npos);
  if (std::filesystem::exists("/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3"))
    CHECK(here.run("fast", {{"steps", 1}}, {{"LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/openblas-pthread"}})
              .err.find(text) == std::string::npos);
}
#endif
