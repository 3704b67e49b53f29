#include "scratch_runs.hpp"

#include <doctest/doctest.h>

using namespace troupe::testing;

namespace {

std::string trained_state(const std::string& charlm, const std::string& workers) {
  scratch_runs here;
  auto argv = here.charlm(
      "run", {"--use-gpu", "--gpus-per-worker", "0.5", "--batch", "32", "--steps", "8", "--workers", workers});
  argv[0] = charlm;
  const auto ran = here.run(std::move(argv), {{"TROUPE_FAKE_GPUS", "1"},
                                              {"CUDA_VISIBLE_DEVICES", "GPU-00000001-0000-0000-0000-000000000000"}});
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  return here.result("run")["state_sha256"];
}

} // namespace

TEST_CASE("kernels compiled by nvcc train to the same bits as those compiled by the host's compiler") {
  const auto by_host = trained_state(built("tests/fake_cuda/bin/charlm"), "1");
  CHECK(by_host.size() == 64);
  CHECK(trained_state(built("tests/fake_cuda/bin/ptx/charlm"), "1") == by_host);
  CHECK(trained_state(built("tests/fake_cuda/bin/ptx/charlm"), "2") == by_host);
}
