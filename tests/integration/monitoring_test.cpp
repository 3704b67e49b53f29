#include "scratch_runs.hpp"

#include <doctest/doctest.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe::testing;
using nlohmann::json;

namespace {

struct page {
  int status = 0;
  std::string body;
};

/// What `process` says that it serves its metrics at: "127.0.0.1:PORT".
std::string address_in(child_process& process) {
  static const auto mark = std::string{"metrics are at http://"};
  std::string text;
  scratch_runs::await(process, [&] {
    text = process.out() + process.err();
    const auto begin = text.find(mark);
    return begin != std::string::npos && text.find('\n', begin) != std::string::npos;
  });
  const auto begin = text.find(mark) + mark.size();
  return text.substr(begin, text.find('/', begin) - begin);
}

std::optional<page> get(const std::string& address, const std::string& path) {
  auto client = httplib::Client{"http://" + address};
  const auto answer = client.Get(path);
  return answer ? std::optional{page{answer->status, answer->body}} : std::nullopt;
}

/// The value of a sample; nothing if it is not there.
std::optional<double> sample(const std::string& address, const std::string& name) {
  const auto answer = get(address, "/metrics");
  const auto text = "\n" + (answer ? answer->body : std::string{});
  const auto found = text.find("\n" + name + " ");
  return found == std::string::npos ? std::nullopt : std::optional{std::stod(text.substr(found + name.size() + 2))};
}

/// What TensorBoard's own reader finds in a run's files; nothing, and why, where it is not installed.
std::optional<json> read_by_tensorboard(const std::filesystem::path& run, const std::filesystem::path& scratch) {
  const auto* given = std::getenv("TROUPE_PYTHON");
  const auto python = std::string{given == nullptr ? "python3" : given};
  const auto* library = std::getenv("TROUPE_TENSORBOARD");
  const auto* path = std::getenv("PYTHONPATH");
  const auto paths = std::string{library == nullptr ? "" : library} + ":" + (path == nullptr ? "" : path);
  const auto run_python = [&](const std::string& arguments, const std::string& output) {
    const auto command = "PYTHONPATH='" + paths + "' '" + python + "' " + arguments + " > '" +
                         (scratch / output).string() + "' 2> '" + (scratch / "tensorboard.err").string() + "'";
    return std::system(command.c_str()) == 0;
  };
  if (!run_python("-c 'from tensorboard.backend.event_processing import plugin_event_accumulator'", "import")) {
    std::printf("SKIP: no Python with tensorboard (TROUPE_PYTHON and TROUPE_TENSORBOARD name one)\n");
    return std::nullopt;
  }
  REQUIRE(run_python("'" + sources("tests/integration/tensorboard_scalars.py") + "' '" +
                         (run / "tensorboard").string() + "'",
                     "scalars"));
  return json::parse(read_file(scratch / "scalars"));
}

} // namespace

TEST_CASE("a run is ready once it trains, and its page follows it through the loss of a worker to its end") {
  scratch_runs here;
  auto argv = here.charlm(
      "run", {"--steps", "100000000", "--workers", "2", "--metrics", "127.0.0.1:0", "--checkpoint-every", "20"});
  // Where it listens is a note.
  std::erase(argv, "--quiet");
  auto driver = here.start(argv);
  const auto address = address_in(driver);
  here.await(driver, [&] { return get(address, "/readyz").value_or(page{}).status == 200; });
  CHECK(get(address, "/healthz")->status == 200);
  here.await(driver, [&] { return sample(address, "troupe_step").value_or(0) > 0; });
  here.await(driver, [&] { return sample(address, R"(troupe_checkpoints_total{outcome="saved"})").value_or(0) > 0; });
  // Rows come about once a second.
  here.await(driver, [&] {
    return sample(address, R"(troupe_rank_seconds_total{rank="1",phase="compute"})").value_or(0) > 0 &&
           sample(address, "troupe_step_seconds_count").value_or(0) > 0;
  });
  CHECK(sample(address, R"(troupe_collective_sent_bytes_total{rank="1"})").value_or(0) > 0);
  CHECK(sample(address, R"(troupe_worker_resident_bytes{rank="0"})").value_or(0) > 1'000'000);
  CHECK(sample(address, R"(troupe_metric{name="loss"})").value_or(0) > 0);
  CHECK(sample(address, "troupe_workers") == 2.0);
  here.await(driver, [&] { return sample(address, "troupe_goodput_ratio").value_or(0) > 0; });
  send_signal(here.worker_of_rank(1), SIGKILL);
  here.await(driver, [&] {
    return sample(address, R"(troupe_failures_total{code="worker_lost",consequence="false"})") == 1.0 &&
           sample(address, "troupe_pauses_total").value_or(0) > 0;
  });
  here.await(driver, [&] { return sample(address, "troupe_generation").value_or(0) >= 2; });
  driver.signal_group(SIGINT);
  CHECK(driver.wait() == exit_status{130, {}});
  CHECK_FALSE(get(address, "/healthz"));
  const auto goodput = here.result("run")["goodput"];
  INFO(goodput.dump());
  CHECK(goodput["productive"].get<double>() > 0);
  CHECK(goodput["lost"]["start_up"].get<double>() > 0);
  CHECK(goodput["lost"]["regroup"].get<double>() > 0);
  auto sum = goodput["productive"].get<double>();
  for (const auto& [cause, seconds] : goodput["lost"].items())
    sum += seconds.get<double>();
  CHECK(sum == doctest::Approx(goodput["seconds"].get<double>()).epsilon(0.05));
}

TEST_CASE("a port that is in use ends a run, and a node, before anything begins") {
  scratch_runs here;
  httplib::Server other;
  const auto address = "127.0.0.1:" + std::to_string(other.bind_to_any_port("127.0.0.1"));
  const auto run = here.run(here.charlm("run", {"--metrics", address}));
  CHECK(run.status == exit_status{1, {}});
  CHECK(contains(run.err, address + " is in use"));
  CHECK_FALSE(std::filesystem::exists(here.run_directory("run")));
  const auto node = here.run({caf_node_program(), "--metrics", address});
  CHECK(node.status == exit_status{1, {}});
  CHECK(contains(node.err, address + " is in use"));
  // No address, and no URL.
  CHECK(here.run(here.charlm("run", {"--metrics", "here"})).status == exit_status{2, {}});
  CHECK(here.run(here.charlm("run", {"--mlflow", "mlruns"})).status == exit_status{2, {}});
}

TEST_CASE("a node says which workers it has, and which it had") {
  scratch_runs here;
  auto node = here.start_node({"--metrics", "127.0.0.1:0", "--cpus", "3"});
  const auto address = address_in(node.process);
  CHECK(get(address, "/readyz")->status == 200);
  auto driver = here.start(here.charlm("run", {"--steps", "100000000", "--workers", "2", "--nodes", node.address}));
  here.await(driver, [&] { return sample(address, R"(troupe_node_workers{run="run"})") == 2.0; });
  here.await_step(driver, "run");
  CHECK(sample(address, "troupe_node_cpus") == 3.0);
  CHECK(sample(address, "troupe_node_workers_started_total") == 2.0);
  CHECK(sample(address, R"(troupe_node_driver_connected{run="run"})") == 1.0);
  CHECK(sample(address, R"(troupe_node_workers_resident_bytes{run="run"})").value_or(0) > 1'000'000);
  CHECK(sample(address, R"(troupe_node_workers_cpu_seconds_total{run="run"})").value_or(0) > 0);
  driver.signal_group(SIGINT);
  CHECK(driver.wait() == exit_status{130, {}});
  here.await(node.process, [&] { return sample(address, "troupe_node_runs") == 0.0; });
  CHECK(sample(address, "troupe_node_workers_ended_total") == 2.0);
  CHECK_FALSE(sample(address, R"(troupe_node_workers{run="run"})"));
}

TEST_CASE("TensorBoard shows each step of a run once, although its driver was killed and it was resumed") {
  scratch_runs here;
  const auto up_to = [&here](std::uint64_t steps) {
    return here.charlm(
        "run", {"--steps", std::to_string(steps), "--workers", "2", "--tensorboard", "--checkpoint-every", "10"});
  };
  const auto files = [&here] {
    std::vector<std::filesystem::path> result;
    auto code = std::error_code{};
    for (const auto& each : std::filesystem::directory_iterator{here.run_directory("run") / "tensorboard", code})
      if (each.path().filename().string().starts_with("events.out.tfevents."))
        result.push_back(each.path());
    std::ranges::sort(result);
    return result;
  };
  for (std::size_t i = 0; i < 2; ++i) {
    auto driver = here.start(up_to(100'000'000));
    // Some steps after a checkpoint, which are computed again.
    here.await(driver, [&] {
      return files().size() == i + 1 && !here.checkpoints("run").empty() && here.last_step("run") % 10 > 2;
    });
    driver.signal(SIGKILL);
    driver.wait();
    REQUIRE(here.workers_vanish());
    // A kill may tear a record: here its head, there its content.
    std::ofstream{files().back(), std::ios::app | std::ios::binary}
        << (i == 0 ? std::string{"\x40\0\0", 3} : read_file(files().back()).substr(0, 30));
  }
  const auto steps = here.last_step("run") + 20;
  const auto last = here.run(up_to(steps));
  INFO(last.err);
  REQUIRE(last.status == exit_status{0, {}});
  CHECK(files().size() == 3);
  const auto found = read_by_tensorboard(here.run_directory("run"), here.path(""));
  if (!found)
    return;
  const auto& loss = (*found)["loss"];
  REQUIRE(loss.size() == steps);
  for (std::size_t i = 0; i < loss.size(); ++i)
    CHECK(loss[i][0] == i + 1);
  // The run's own lines say the same.
  for (const auto& row : read_lines(here.run_directory("run") / "metrics.jsonl"))
    if (row["rank"] == 0 && row.contains("loss"))
      CHECK(loss[row["step"].get<std::size_t>() - 1][1].get<float>() == row["loss"].get<float>());
  CHECK(found->contains("troupe/compute_ms/rank_1"));
  CHECK(found->contains("troupe/goodput"));
}
