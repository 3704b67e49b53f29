#include "torch_runs.hpp"

#include <string>
#include <utility>

// The path of a replica whose state and gradients are in a GPU's memory, without a GPU: torch_run over the fakes of
// tests/fake_cuda, in whose memory LibTorch for the CPU computes. What that path must keep is the bits of the other
// one, which are known to be LibTorch's own. It shows nothing of LibTorch's streams and kernels on a GPU.

using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Runs of which those named with "gpu" are on the fake GPU, which all their workers share.
struct device_runs : torch_runs {
  using trained_state = std::pair<std::string, std::string>;

  trained_state on_host(const std::string& name, json wanted) { return trained(name, std::move(wanted)); }

  trained_state on_gpu(const std::string& name, json wanted) {
    wanted["use_gpu"] = true;
    const auto host = std::exchange(program, built("tests/fake_cuda/bin/torch_run"));
    variables = {{"TROUPE_FAKE_CUDA_SYNCHRONOUS", "1"},
                 {"TROUPE_FAKE_GPUS", "1"},
                 {"CUDA_VISIBLE_DEVICES", "GPU-00000001-0000-0000-0000-000000000000"}};
    const auto result = trained("gpu-" + name, std::move(wanted));
    CHECK(last["programs"].back()["libraries"].contains("device.driver"));
    variables.clear();
    program = host;
    return result;
  }

  /// All runs of this function have the bits of the run on the host.
  void check(const json& how) {
    const auto with = [&](json more) {
      more.update(how);
      return more;
    };
    const auto wanted = on_host("host", with({{"workers", 2}}));
    const auto metrics = last["metrics"];
    for (const auto workers : {1, 2, 4}) {
      CAPTURE(workers);
      CHECK(on_gpu("on-" + std::to_string(workers), with({{"workers", workers}})) == wanted);
      CHECK(last["metrics"] == metrics);
    }
    (void)on_gpu("halves", with({{"workers", 2}, {"steps", 11}}));
    CHECK(on_gpu("halves", with({{"workers", 1}})) == wanted);
    auto killed = with({{"workers", 3}});
    killed["options"]["kill_at"] = 9;
    CHECK(on_gpu("killed", killed) == wanted);
  }
};

} // namespace

TEST_CASE_FIXTURE(device_runs, "a network whose state is in a GPU's memory has the bits of the host") {
  check(json::object());
  const auto wanted = on_host("small-host", {{"workers", 1}, {"steps", 8}});
  CHECK(on_gpu("afterwards", {{"workers", 2}, {"steps", 8}, {"options", {{"overlap", false}}}}) == wanted);
  CHECK(on_gpu("verified", {{"workers", 2}, {"steps", 8}, {"verify", 1}}) == wanted);
}

TEST_CASE_FIXTURE(device_runs, "tensors of a GPU that are not contiguous are tracked by copies beside them") {
  const json how{{"config", {{"channels_last", true}}}};
  const auto wanted = on_host("host", how);
  auto two = how;
  two["workers"] = 2;
  CHECK(on_gpu("two", two) == wanted);
}

TEST_CASE_FIXTURE(device_runs, "a joiner on a GPU gets the others' state") {
  const json how{{"workers", 3}, {"steps", 150}};
  const auto wanted = on_host("host", how);
  auto replaced = how;
  replaced["options"] = {{"kill_at", 5}, {"await_joiner", true}};
  CHECK(on_gpu("replaced", replaced) == wanted);
  CHECK(last["generations"].size() >= 2);
}

TEST_CASE_FIXTURE(device_runs, "the training kit on a GPU keeps the bits of the host") {
  check({{"function", "kit"}});
}

TEST_CASE_FIXTURE(device_runs, "steps that a scaled gradient overflows are left out on a GPU, too") {
  check({{"function", "loss_scale"}});
}
