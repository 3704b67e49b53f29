#include "scratch_runs.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <map>
#include <string>
#include <vector>

// charlm on several fake GPUs, in several processes, over the fake NCCL.

using namespace troupe::testing;

namespace {

using environment = std::map<std::string, std::string>;

std::string uuid(int number) {
  return "GPU-0000000" + std::to_string(number) + "-0000-0000-0000-000000000000";
}

/// Environment that shows `first` to `last` of four GPUs.
environment gpus(int first, int last, environment more = {}) {
  std::string visible;
  for (int i = first; i <= last; ++i) {
    if (i > first)
      visible += ',';
    visible += uuid(i);
  }
  more.insert({{"TROUPE_FAKE_GPUS", "4"}, {"CUDA_VISIBLE_DEVICES", visible}});
  return more;
}

struct training {
  explicit training(const std::string& name) : name(name) { more = {"--use-gpu", "--batch", "32", "--steps", "60"}; }

  [[nodiscard]] std::vector<std::string> argv(std::vector<std::string> last) const {
    auto all = more;
    all.insert(all.end(), last.begin(), last.end());
    return here.charlm(name, std::move(all));
  }

  /// The digest of the state of an undisturbed run on one worker. Computed once.
  static const std::string& undisturbed() {
    static const auto digest = train_undisturbed();
    return digest;
  }

  static std::string train_undisturbed() {
    auto alone = training{"alone"};
    auto ran = alone.here.run(alone.argv({"--workers", "1"}), gpus(1, 1));
    INFO(ran.out << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return alone.here.result("alone")["state_sha256"];
  }

  /// A fault of one worker's GPU, in some step after the first few.
  void plan_fault(const std::string& kind, environment& values) const {
    const auto file = here.path("fault").string();
    std::ofstream{file}.close();
    values["TROUPE_FAKE_GPU_FAULT"] = kind + ":" + file;
    values["TROUPE_FAKE_GPU_FAULT_AFTER"] = "1000";
  }

  void start(environment values, std::vector<std::string> last = {"--workers", "3"}) {
    driver.emplace(here.start(argv(std::move(last)), std::move(values)));
  }

  void await_steps() { here.await_step(*driver, name, 10); }

  /// Returns the run's result after comparing its state with that of an undisturbed run.
  nlohmann::json end_well() {
    auto status = driver->wait();
    INFO(driver->out() << driver->err());
    REQUIRE(status == exit_status{0, {}});
    auto result = here.result(name);
    CHECK(result["state_sha256"] == undisturbed());
    CHECK(result["steps"] == 60);
    return result;
  }

  scratch_runs here;
  std::string name;
  std::vector<std::string> more;
  std::optional<child_process> driver;
};

} // namespace

TEST_CASE("each worker uses one of four GPUs over NCCL without a configured number") {
  training run{"four"};
  run.start(gpus(1, 4), {});
  run.end_well();
  CAPTURE(run.driver->err());
  CHECK(contains(run.driver->err(), "over NCCL 2.28.9: 4 workers with a GPU each"));
}

TEST_CASE("a killed worker over NCCL is replaced with every version of NCCL") {
  environment nccl;
  SUBCASE("shrink") {}
  SUBCASE("shrink, and notice that a peer is lost") {
    nccl = {{"TROUPE_FAKE_NCCL_NOTICES", "1"}};
  }
  SUBCASE("neither shrink nor revoke") {
    nccl = {{"TROUPE_FAKE_NCCL_VERSION", "21800"}};
  }
  training run{"killed"};
  run.start(gpus(1, 3, nccl));
  run.await_steps();
  send_signal(run.here.worker_of_rank(1), SIGKILL);
  auto result = run.end_well();
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].size() == 1);
  CHECK(result["generations"].size() == 2);
}

TEST_CASE("a frozen worker over NCCL is replaced") {
  training run{"frozen"};
  run.start(gpus(1, 3));
  run.await_steps();
  send_signal(run.here.worker_of_rank(1), SIGSTOP);
  auto result = run.end_well();
  CHECK(result["restarts"] == 0);
  CHECK(contains(result["failures"][0]["message"], "its process is stopped"));
}

TEST_CASE("a lost GPU costs its worker, is named, and the others continue") {
  training run{"lost"};
  std::vector<std::string> last{"--workers", "3"};
  auto visible = gpus(1, 3);
  SUBCASE("over NCCL") {}
  SUBCASE("a GPU that several workers share") {
    last.insert(last.end(), {"--gpus-per-worker", "0.25"});
    visible = gpus(1, 1);
  }
  run.plan_fault("lose", visible);
  run.start(visible, last);
  auto result = run.end_well();
  CHECK(result["restarts"] == 0);
  REQUIRE(result["failures"].size() == 1);
  CHECK(result["failures"][0]["code"] == "device_error");
  const std::string message = result["failures"][0]["message"];
  CAPTURE(message);
  for (const auto* part : {"rank ", " after step ", "GPU 0 (fake GPU, GPU-0000000", "illegal memory access"})
    CHECK(contains(message, part));
}

TEST_CASE("a run continues without a GPU that stays broken") {
  training run{"broken"};
  auto visible = gpus(1, 3);
  run.plan_fault("break", visible);
  run.start(visible);
  auto result = run.end_well();
  CHECK(result["failures"][0]["code"] == "device_error");
  CHECK(result["generations"].back()["workers"] == 2);
}

TEST_CASE("a GPU that hangs in a kernel is found on request, and its worker is replaced when it is killed") {
  training run{"hanging"};
  auto visible = gpus(1, 3);
  run.plan_fault("hang", visible);
  run.start(visible);
  run.here.await_step(*run.driver, run.name);
  /// The rank whose last line reports it, if it is the only one; -1 otherwise.
  const auto named = [&] {
    int result = -1;
    for (int rank = 0; rank < 3; ++rank) {
      const auto text = run.driver->err();
      const auto at = text.rfind("[rank " + std::to_string(rank) + "] step");
      if (at == std::string::npos)
        return -1;
      if (!contains(text.substr(at, text.find('\n', at) - at), "which waits for this worker's own GPU"))
        continue;
      if (result >= 0)
        return -1;
      result = rank;
    }
    return result;
  };
  // A healthy step waits for kernels, too, but briefly: the same rank must be reported repeatedly.
  int before = -1;
  int times = 0;
  scratch_runs::await(*run.driver, [&] {
    for (auto pid : run.here.workers())
      send_signal(pid, SIGUSR1);
    const auto rank = named();
    times = rank >= 0 && rank == before ? times + 1 : 0;
    before = rank;
    return times >= 50;
  });
  const auto found = run.here.worker_of_rank(before);
  REQUIRE(found != 0);
  send_signal(found, SIGKILL);
  auto result = run.end_well();
  CAPTURE(run.driver->err());
  CAPTURE(result["failures"].dump(1));
  CHECK(result["failures"].size() == 1);
}

TEST_CASE("if NCCL recovers for no worker, the last one saves the state, and nothing is computed again") {
  training run{"stuck"};
  std::vector<std::string> last{"--workers", "3", "--checkpoint-every", "0"};
  SUBCASE("into the driver's directory") {}
  SUBCASE("as a stream") {
    last.insert(last.end(), {"--checkpoint-sync", "stream"});
  }
  run.start(gpus(1, 3, {{"TROUPE_FAKE_NCCL_VERSION", "21800"}, {"TROUPE_FAKE_NCCL_ABORT_HANGS", "1"}}), last);
  run.await_steps();
  send_signal(run.here.worker_of_rank(1), SIGKILL);
  auto result = run.end_well();
  // Unless it was killed outside a reduction.
  CHECK(result["restarts"].get<int>() <= 1);
  if (result["restarts"] == 1) {
    CHECK(contains(run.driver->err(), "saved the state of step"));
    CHECK(result["generations"][0]["commit_point_step"].get<int>() > 10);
  }
}

TEST_CASE("read-only memory is pinned if the driver supports it") {
  training run{"pinned"};
  run.start(gpus(1, 1, {{"TROUPE_FAKE_PINS_READ_ONLY", "1"}}), {"--workers", "3", "--gpus-per-worker", "0.25"});
  run.end_well();
}

TEST_CASE("a GPU without enough memory is reported with the requested and the free size") {
  training run{"narrow"};
  run.start(gpus(1, 2, {{"TROUPE_FAKE_GPU_BYTES", "1000000"}}), {"--workers", "2"});
  CHECK(run.driver->wait() == exit_status{1, {}});
  const auto text = run.driver->err();
  CAPTURE(text);
  CHECK(contains(text, "GPU 0 (fake GPU, GPU-0000000"));
  CHECK(contains(text, "is out of memory: "));
  CHECK(contains(text, " of 1000000 are free"));
}

TEST_CASE("shards computed twice on different GPUs agree, and differences of the library are reported") {
  training run{"twice"};
  std::vector<std::string> last{"--workers", "3", "--verify-determinism=2"};
  SUBCASE("deterministic") {
    run.start(gpus(1, 3), last);
    run.end_well();
    CHECK(contains(run.driver->err(), "shards were computed twice"));
  }
  SUBCASE("noisy") {
    run.start(gpus(1, 3, {{"TROUPE_FAKE_CUBLAS_NOISE", "1"}}), last);
    CHECK(run.driver->wait() == exit_status{1, {}});
    const auto text = run.driver->err();
    CAPTURE(text);
    CHECK(
        contains(text, "step 2, shard 0: rank 0, whose it is, and rank 1 have computed it, and the results differ in"));
  }
}

TEST_CASE("a run over two nodes with two GPUs each survives the loss of a worker") {
  training run{"nodes"};
  run.more.insert(run.more.end(), {"--insecure"});
  std::vector<running_node> nodes;
  for (int i : {0, 1})
    nodes.push_back(
        run.here.start_node({"--insecure", "--program-dir", run.here.programs()}, gpus(2 * i + 1, 2 * i + 2)));
  // The driver's machine shows no GPUs.
  run.start({{"CUDA_VISIBLE_DEVICES", ""}}, {"--workers", "2-4", "--nodes", nodes[0].address + "," + nodes[1].address});
  run.await_steps();
  CHECK(contains(run.driver->err(), "over NCCL 2.28.9: 4 workers with a GPU each"));
  send_signal(nodes[1].process.pid(), SIGKILL);
  auto result = run.end_well();
  CHECK(result["restarts"] == 0);
  CHECK(result["generations"].back()["workers"] == 2);
}
