#include "serving_scene.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <processes.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

// A server whose replicas are processes.

namespace {

struct remote_scene : serving_scene {
  remote_scene() {
    train("12");
    rows_of_text = rows();
    expected.emplace(12, predictions(12));
  }

  /// Starts clients; the server has to answer all that they ask, and right.
  [[nodiscard]] load ask(child_process& server) const { return {port_of(server), rows_of_text, expected, 4}; }

  static void all_is_right(load& clients) {
    const auto found = clients.finish();
    CHECK_MESSAGE(found.wrong == 0, found.first_wrong);
    CHECK(found.cut + found.refused == 0);
  }

  /// Waits until so many more are answered.
  static void answers(load& clients, std::uint64_t more) {
    const auto before = clients.now().right;
    CHECK(becomes_true([&] { return clients.now().right >= before + more || clients.now().wrong > 0; }));
  }

  static void end(child_process& server) {
    server.signal(SIGTERM);
    CHECK(server.wait() == exit_status{0, {}});
    INFO(server.err());
    CHECK(!contains(server.err(), "requests were left"));
  }

  text_rows rows_of_text;
  std::map<std::uint64_t, std::vector<float>> expected;
};

} // namespace

TEST_CASE_FIXTURE(remote_scene, "replicas in processes have the bits of threads, and a killed one costs no request") {
  auto server = serve({"--processes", "--replicas", "2"});
  auto clients = ask(server);
  answers(clients, 100);
  auto processes = workers();
  REQUIRE(processes.size() == 2);
  for (auto i = 0; i < 2; ++i) {
    send_signal(processes[0], SIGKILL);
    answers(clients, 100);
    CHECK(becomes_true([&] { return workers().size() == 2 && workers() != processes; }));
    processes = workers();
  }
  answers(clients, 100);
  all_is_right(clients);
  CHECK(contains(server.err(), "warning: the process of replica "));
  end(server);
  CHECK(workers_vanish());
}

TEST_CASE_FIXTURE(remote_scene, "a frozen process costs no request either") {
  auto server = serve({"--processes", "--replicas", "2"});
  auto clients = ask(server);
  answers(clients, 100);
  const auto processes = workers();
  REQUIRE(processes.size() == 2);
  send_signal(processes[0], SIGSTOP);
  CHECK(becomes_true([&] { return workers().size() == 2 && workers() != processes; }, std::chrono::minutes{1}));
  answers(clients, 100);
  all_is_right(clients);
  end(server);
}

TEST_CASE_FIXTURE(remote_scene,
                  "replicas on nodes: a node that is lost costs no request, and another takes its place") {
  auto first = start_node();
  auto second = start_node();
  auto server = serve({"--nodes", first.address + "," + second.address, "--replicas", "2"});
  auto clients = ask(server);
  answers(clients, 100);
  CHECK(workers().size() == 2);
  first.process.signal(SIGKILL);
  answers(clients, 100);
  CHECK(becomes_true([&] { return workers().size() == 2; }));
  answers(clients, 100);
  all_is_right(clients);
  end(server);
  CHECK(workers_vanish());
}

TEST_CASE_FIXTURE(remote_scene,
                  "of the nodes that a host file names those get replicas that have the label, and room") {
  const auto first = start_node();
  const auto labelled = start_node({"--label", "kind=serving", "--memory", "1GiB"});
  const auto both = first.address + "," + labelled.address;
  write_file(path("hosts"), first.address + "\n" + labelled.address + "\n");
  const auto workers_of = [&](const running_node& node) {
    const auto ran = run({troupe_program(), "nodes", "--json", "--nodes", both});
    for (const auto& each : nlohmann::json::parse(ran.out))
      if (each["address"] == node.address)
        return each["workers"].get<int>();
    return -1;
  };
  REQUIRE(becomes_true([&] { return workers_of(labelled) == 0; }));
  const auto in_cluster = [&](const std::string& label, const std::string& memory) {
    return serve(
        {"--hosts", path("hosts").string(), "--node-label", label, "--memory-per-replica", memory, "--replicas", "2"});
  };
  auto server = in_cluster("kind=serving", "512MiB");
  auto clients = ask(server);
  answers(clients, 100);
  CHECK(becomes_true([&] { return workers_of(labelled) == 2; }));
  CHECK(workers_of(first) == 0);
  all_is_right(clients);
  end(server);
  CHECK(workers_vanish());
  for (const auto& [label, memory, reason] : {std::tuple{"kind=training", "1MiB", "kind=training"},
                                              std::tuple{"kind=serving", "2GiB", "what a replica leases"}}) {
    auto refused = in_cluster(label, memory);
    const auto status = refused.wait();
    INFO(refused.err());
    CHECK(status == exit_status{1, {}});
    CHECK(contains(refused.err(), reason));
  }
}

TEST_CASE_FIXTURE(remote_scene, "a newer checkpoint is sent to the processes, and served without a lost request") {
  serving_scene ahead;
  ahead.train("24");
  expected.emplace(24, ahead.predictions(24));
  auto node = start_node();
  auto server = serve({"--nodes", node.address, "--replicas", "2", "--poll", "0.05"});
  auto clients = ask(server);
  answers(clients, 100);
  train("24");
  CHECK(becomes_true([&] { return clients.now().last_step == 24; }));
  answers(clients, 100);
  const auto found = clients.finish();
  CHECK(found.steps_back == 0);
  all_is_right(clients);
  end(server);
}

TEST_CASE_FIXTURE(remote_scene, "nodes that cannot take replicas are told before anything is served") {
  const auto done =
      run({troupe_program(), "serve", run_directory("model").string(), "--port", "0", "--nodes", "127.0.0.1:1"});
  CHECK(done.status == exit_status{1, {}});
  CHECK(done.out.empty());
  CHECK(contains(done.err, "127.0.0.1:1"));
  const auto wrong = run({troupe_program(), "serve", run_directory("model").string(), "--nodes", "nowhere"});
  CHECK(wrong.status == exit_status{2, {}});
}
