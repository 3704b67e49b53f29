#include "scratch_runs.hpp"

#include <gpu.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <doctest/doctest.h>
#include <string>
#include <vector>

using namespace troupe::testing;

namespace {

/// charlm on workers that share one GPU.
std::vector<std::string> on_gpu(const scratch_runs& here, const std::string& name, std::uint32_t workers,
                                std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--use-gpu", "--workers", std::to_string(workers)});
  if (workers > 1)
    more.insert(more.end(), {"--gpus-per-worker", std::to_string(1.0 / workers)});
  return here.charlm(name, std::move(more));
}

nlohmann::json run(scratch_runs& here, const std::string& name, std::uint32_t workers,
                   std::vector<std::string> more = {}) {
  auto ran = here.run(on_gpu(here, name, workers, std::move(more)));
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  auto result = here.result(name);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
  return result;
}

/// Enough steps for five seconds on one worker, so that the others still train when the replacement joins.
std::string enough_steps(scratch_runs& here) {
  if (has_fake_gpu())
    return "100";
  constexpr auto tried = 300;
  auto seconds = run(here, "tried", 1, {"--steps", std::to_string(tried)})["seconds"];
  auto each = (seconds["total"].get<double>() - seconds["to_first_step"].get<double>()) / tried;
  return std::to_string(std::clamp(static_cast<int>(5 / each), tried, 30'000));
}

} // namespace

TEST_CASE("a run on a GPU ends with the same bits on one, two and four workers that share it, and after a kill") {
  if (!has_gpu())
    return;
  scratch_runs here;
  const std::vector<std::string> steps{"--steps", enough_steps(here)};
  const auto wanted = run(here, "one", 1, steps)["state_sha256"];
  CHECK(run(here, "two", 2, steps)["state_sha256"] == wanted);
  CHECK(run(here, "four", 4, steps)["state_sha256"] == wanted);
  // Small states are sent while the others wait, large ones while they train.
  for (const std::string transfer_above : {"1000000000", "0"}) {
    CAPTURE(transfer_above);
    auto name = "killed-" + transfer_above;
    auto more = steps;
    more.insert(more.end(), {"--background-transfer-above", transfer_above});
    auto driver = here.start(on_gpu(here, name, 4, more));
    here.await_step(driver, name, 20);
    const auto victim = here.worker_of_rank(2);
    REQUIRE(victim > 0);
    send_signal(victim, SIGKILL);
    auto status = driver.wait();
    INFO(driver.err());
    REQUIRE(status == exit_status{0, {}});
    auto result = here.result(name);
    CHECK(result["state_sha256"] == wanted);
    CHECK(result["failures"].size() == 1);
    const auto& last = result["generations"].back();
    CHECK(contains(last["reason"].get<std::string>(), "join"));
    CHECK(last["workers"] == 4);
  }
}

TEST_CASE("a stopped run on a GPU resumes with the same bits on another number of workers") {
  if (!has_gpu())
    return;
  scratch_runs here;
  const auto wanted = run(here, "whole", 1, {"--steps", "60"})["state_sha256"];
  CHECK(run(here, "parts", 2, {"--steps", "30", "--checkpoint-every", "10"})["steps"] == 30);
  CHECK(run(here, "parts", 1, {"--steps", "45"})["steps"] == 45);
  CHECK(run(here, "parts", 4, {"--steps", "60"})["state_sha256"] == wanted);
}

TEST_CASE("a run on a GPU learns the same as one on the CPU, but does not resume from its checkpoints") {
  if (!has_gpu())
    return;
  scratch_runs here;
  auto gpu = run(here, "gpu", 1, {"--steps", "200"})["metrics"]["loss"].get<double>();
  auto cpu = here.run(here.charlm("cpu", {"--steps", "200"}));
  REQUIRE(cpu.status == exit_status{0, {}});
  CHECK(here.result("cpu")["metrics"]["loss"].get<double>() == doctest::Approx(gpu).epsilon(0.02));
  auto mixed = here.run(on_gpu(here, "cpu", 1, {"--steps", "300"}));
  CHECK(mixed.status == exit_status{1, {}});
  CHECK(contains(mixed.err, "config"));
}

TEST_CASE("more workers than fit on the GPU are rejected") {
  if (!has_gpu())
    return;
  scratch_runs here;
  auto argv = here.charlm("many", {"--use-gpu", "--workers", "3", "--gpus-per-worker", "0.5", "--shards", "8"});
  auto ran = here.run(argv, {{"CUDA_VISIBLE_DEVICES", "0"}});
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "3 workers with 0.5 GPU each need 2 GPUs"));
}
