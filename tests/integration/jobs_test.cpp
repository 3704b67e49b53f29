#include "scratch_runs.hpp"
#include "submission.hpp"

#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

// Jobs on caf-nodes on loopback, as `troupe submit` makes them and the other commands watch and steer them.

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

class jobs {
 public:
  scratch_runs here;

  [[nodiscard]] running_node start_node(const std::string& state, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--state", here.path(state).string(), "--program-dir", scratch_runs::programs()});
    return here.start_node(std::move(more));
  }

  [[nodiscard]] std::vector<std::string> command(std::vector<std::string> words, const std::string& cluster) const {
    words.insert(words.begin(), troupe_program());
    words.insert(words.begin() + 2, {"--cluster", cluster});
    return words;
  }

  outcome troupe(const std::string& cluster, std::vector<std::string> words) {
    return here.run(command(std::move(words), cluster));
  }

  /// A small charlm run as a job; `more` takes precedence.
  outcome submit(const std::string& cluster, const std::string& name, std::vector<std::string> more = {},
                 const std::vector<std::string>& options = {}) {
    return troupe(cluster, submission(here, name, options, std::move(more)));
  }

  void await_nodes(const std::string& cluster, std::size_t count) {
    REQUIRE(becomes_true([&] {
      return nlohmann::json::parse(troupe(cluster, {"nodes", "--json"}).out).size() == count;
    }));
  }

  [[nodiscard]] nlohmann::json status(const std::string& cluster, const std::string& name) {
    const auto ran = troupe(cluster, {"status", name, "--json"});
    return nlohmann::json::parse(ran.out, nullptr, false);
  }

  [[nodiscard]] std::uint64_t step(const std::string& cluster, const std::string& name) {
    const auto now = status(cluster, name);
    return now.is_object() ? now.value("step", std::uint64_t{0}) : 0;
  }

  /// The driver processes of jobs.
  [[nodiscard]] std::vector<pid_t> drivers() const {
    auto result = here.processes();
    std::erase_if(result, [](pid_t pid) {
      const auto variables = environment_of(pid);
      return !variables.contains("TROUPE_JOB") || variables.contains("TROUPE_WORKER");
    });
    return result;
  }

  [[nodiscard]] nlohmann::json result_in(const std::string& state, const std::string& name) const {
    return nlohmann::json::parse(read_file(here.path(state) / name / "runs" / name / "result.json"));
  }
};

std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> result;
  auto code = std::error_code{};
  for (const auto& each : std::filesystem::directory_iterator{directory, code})
    result.insert(each.path().filename());
  return result;
}

} // namespace

TEST_CASE_FIXTURE(jobs, "a node runs a job, and other processes watch it, read what it writes, and see it end") {
  const auto node = start_node("state");
  CHECK_FALSE(std::filesystem::exists(here.path("state")));
  CHECK(contains(troupe(node.address, {"runs"}).out, "the cluster has no jobs"));
  const auto submitted = submit(node.address, "night", {"--steps", "3000", "--workers", "2"});
  INFO(submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  CHECK(submitted.out == "job night is on " + node.address + "\n");
  CHECK(becomes_true([&] { return step(node.address, "night") > 5; }));
  const auto listed = nlohmann::json::parse(troupe(node.address, {"runs", "--json"}).out);
  REQUIRE(listed["jobs"].size() == 1);
  CHECK(listed["jobs"][0]["name"] == "night");
  CHECK(listed["jobs"][0]["state"] == "running");
  CHECK(listed["jobs"][0]["node"] == node.address);
  // The name is taken while it runs.
  const auto again = submit(node.address, "night");
  CHECK(again.status == exit_status{1, {}});
  CHECK(contains(again.err, "job night runs already, on " + node.address));
  const auto watched = troupe(node.address, {"watch", "night"});
  INFO(watched.out << watched.err);
  CHECK(watched.status == exit_status{0, {}});
  CHECK(contains(watched.out, "completed"));
  CHECK(becomes_true([&] { return drivers().empty(); }));
  const auto alone = here.run(here.charlm("alone", {"--steps", "3000", "--workers", "1"}));
  REQUIRE(alone.status == exit_status{0, {}});
  CHECK(result_in("state", "night")["state_sha256"] == here.result("alone")["state_sha256"]);
  CHECK(status(node.address, "night")["state"] == "completed");
  for (const auto* command : {"plot", "report"}) {
    const auto drawn = command == std::string{"plot"} ? troupe(node.address, {"plot", "night"})
                                                      : troupe(node.address, {"report", "night", "-o", "-"});
    INFO(drawn.err);
    CHECK(drawn.status == exit_status{0, {}});
    CHECK(contains(drawn.out, "loss"));
  }
  const auto unknown = troupe(node.address, {"status", "nobody"});
  CHECK(unknown.status == exit_status{2, {}});
  CHECK(contains(unknown.err, "the cluster has no job nobody; it has night"));
}

TEST_CASE_FIXTURE(jobs, "a driver that is killed is started again, and goes on with the same workers and bits") {
  const auto first = start_node("first");
  const auto second = here.start_node(
      {"--join", first.address, "--program-dir", scratch_runs::programs(), "--state", here.path("second").string()});
  await_nodes(first.address, 2);
  const auto submitted = submit(first.address, "run", {"--steps", "1000000", "--workers", "2", "--placement", "spread"},
                                {"--node", second.address});
  INFO(submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  auto watching = here.start(command({"watch", "run"}, first.address));
  REQUIRE(becomes_true([&] { return step(first.address, "run") > 50; }));
  const auto workers = here.workers();
  CHECK(workers.size() == 2);
  for (auto kill = 0; kill < 2; ++kill) {
    const auto before = drivers();
    REQUIRE(before.size() == 1);
    const auto reached = step(first.address, "run");
    send_signal(before[0], SIGKILL);
    REQUIRE(becomes_true([&] { return !drivers().empty() && drivers() != before; }));
    CHECK(becomes_true([&] { return step(first.address, "run") > reached + 20; }));
    CHECK(here.workers() == workers);
  }
  CHECK(troupe(first.address, {"stop", "run"}).status == exit_status{0, {}});
  CHECK(watching.wait() == exit_status{0, {}});
  CHECK(contains(watching.out(), "stopped"));
  const auto result = result_in("second", "run");
  CHECK(result["status"] == "stopped");
  CHECK(result["failures"].empty());
  for (const auto& each : result["generations"])
    CHECK(each["reason"] == "the driver was started again");
  CHECK(result["state_sha256"] == here.state_after(result["steps"]));
}

TEST_CASE_FIXTURE(jobs,
                  "a job is paused, resized, saved and stopped from afar, and goes on when it is submitted again") {
  const auto node = start_node("state");
  REQUIRE(submit(node.address, "run", {"--steps", "1000000", "--workers", "1-2"}).status == exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(node.address, "run") > 5; }));
  const auto steer = [&](std::vector<std::string> words) {
    // The cluster's option comes behind the second word.
    words.insert(words.begin(), troupe_program());
    words.insert(words.end(), {"--cluster", node.address});
    return here.run(std::move(words));
  };
  auto ran = steer({"run", "pause", "run"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "paused after step"));
  CHECK(status(node.address, "run")["state"] == "paused");
  CHECK(steer({"run", "resume", "run"}).status == exit_status{0, {}});
  CHECK(steer({"run", "resize", "run", "2"}).status == exit_status{0, {}});
  CHECK(becomes_true([&] { return here.workers().size() == 2; }));
  ran = steer({"checkpoint", "now", "run"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "/checkpoints/step-"));
  ran = steer({"stop", "run"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(becomes_true([&] { return drivers().empty() && here.workers().empty(); }));
  const auto stopped = result_in("state", "run");
  CHECK(stopped["status"] == "stopped");
  const auto steps = stopped["steps"].get<std::uint64_t>();
  CHECK(steer({"stop", "run"}).status == exit_status{0, {}});
  // The same job again goes on from there.
  ran = submit(node.address, "run", {"--steps", std::to_string(steps + 10), "--workers", "1"}, {"--watch"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(result_in("state", "run")["resumed_from_step"] == steps);
}

TEST_CASE_FIXTURE(jobs, "a job ends with its driver's words where its program fails, and one that no node can run is "
                        "refused") {
  const auto node = start_node("state");
  auto ran = submit(node.address, "wrong", {"--text", here.path("no-such-text").string()}, {"--watch"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.out + ran.err, "no-such-text"));
  CHECK(contains(read_file(here.path("state") / "wrong" / "driver.log"), "no-such-text"));
  CHECK(contains(troupe(node.address, {"logs", "wrong", "--driver"}).out, "no-such-text"));
  ran = troupe(node.address, {"submit", "--", "no-such-program"});
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "no-such-program"));
  CHECK(contains(ran.err, node.address));
  ran = troupe(node.address, {"submit", "--name", "../x", "--", "charlm"});
  CHECK(ran.status == exit_status{2, {}});
  ran = troupe(node.address, {"submit", "--node", "127.0.0.1:1", "--", "charlm"});
  CHECK(ran.status == exit_status{1, {}});
  ran = here.run({troupe_program(), "submit", "--", "charlm"});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "TROUPE_CLUSTER"));
}

TEST_CASE_FIXTURE(jobs, "a job that has no run yet, or whose driver has died, is stopped all the same") {
  const auto node = start_node("state", {"--resource", "licence=1"});
  const auto leased = [&](const std::string& name, const std::vector<std::string>& options) {
    return submit(node.address, name, {"--steps", "1000000", "--workers", "1", "--resource-per-worker", "licence=1"},
                  options);
  };
  const auto listed = [&](const std::string& name) {
    const auto all = nlohmann::json::parse(troupe(node.address, {"runs", "--json"}).out);
    for (const auto& each : all["jobs"])
      if (each["name"] == name)
        return each["state"].get<std::string>();
    return std::string{"not listed"};
  };
  REQUIRE(leased("holder", {}).status == exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(node.address, "holder") > 5; }));
  REQUIRE(leased("waiter", {"--wait", "600"}).status == exit_status{0, {}});
  REQUIRE(becomes_true([&] { return contains(read_file(here.path("state") / "waiter" / "driver.log"), "holder"); }));
  auto stopped = troupe(node.address, {"stop", "waiter"});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.status == exit_status{0, {}});
  CHECK(contains(stopped.out, "stopped"));
  CHECK(listed("waiter") == "stopped");
  CHECK(listed("holder") == "running");
  CHECK(drivers().size() == 1);
  // Its driver is not started again while the job is told to end.
  send_signal(drivers().at(0), SIGKILL);
  stopped = troupe(node.address, {"stop", "holder"});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.status == exit_status{0, {}});
  CHECK(listed("holder") == "stopped");
  CHECK(becomes_true([&] { return drivers().empty(); }));
}

TEST_CASE_FIXTURE(jobs, "a job whose driver does not answer is stopped when it goes on, or at once") {
  const auto node = start_node("state");
  const auto freeze = [&](const std::string& name) {
    REQUIRE(submit(node.address, name, {"--steps", "1000000", "--workers", "1"}).status == exit_status{0, {}});
    REQUIRE(becomes_true([&] { return step(node.address, name) > 5; }));
    const auto driver = drivers().at(0);
    send_signal(driver, SIGSTOP);
    return driver;
  };
  const auto driver = freeze("late");
  auto waiting = here.start(command({"stop", "late"}, node.address));
  CHECK(becomes_true([&] { return contains(waiting.err(), "still waiting: the run's driver does not answer"); }));
  CHECK(waiting.running());
  send_signal(driver, SIGCONT);
  CHECK(waiting.wait() == exit_status{0, {}});
  CHECK(contains(waiting.out(), "stopped"));
  REQUIRE(becomes_true([&] { return drivers().empty(); }));

  std::ignore = freeze("killed");
  const auto stopped = troupe(node.address, {"stop", "killed", "--now"});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.status == exit_status{0, {}});
  CHECK(contains(stopped.out, "stopped"));
  CHECK(becomes_true([&] { return drivers().empty(); }));
}

TEST_CASE_FIXTURE(jobs, "a job that has ended is removed with its files, and its name is free") {
  const auto node = start_node("state");
  REQUIRE(submit(node.address, "long", {"--steps", "1000000", "--workers", "1"}).status == exit_status{0, {}});
  REQUIRE(submit(node.address, "short", {"--steps", "20", "--workers", "1"}, {"--watch"}).status == exit_status{0, {}});
  auto removed = troupe(node.address, {"rm", "long", "short"});
  INFO(removed.out << removed.err);
  CHECK(removed.status == exit_status{1, {}});
  CHECK(contains(removed.err, "job long has not ended: `troupe stop long` ends it"));
  CHECK(contains(removed.out, "removed job short"));
  const auto listed = nlohmann::json::parse(troupe(node.address, {"runs", "--json"}).out);
  REQUIRE(listed["jobs"].size() == 1);
  CHECK(listed["jobs"][0]["name"] == "long");
  CHECK(becomes_true([&] { return names_in(here.path("state")) == std::set<std::string>{".lock", "long"}; }));
  removed = troupe(node.address, {"rm", "short"});
  CHECK(removed.status == exit_status{2, {}});
  CHECK(contains(removed.err, "the cluster has no job short; it has long"));

  REQUIRE(submit(node.address, "short", {"--steps", "10", "--workers", "1"}, {"--watch"}).status == exit_status{0, {}});
  CHECK(result_in("state", "short")["steps"] == 10);
  CHECK(troupe(node.address, {"stop", "long"}).status == exit_status{0, {}});
}

namespace {

/// Two nodes that know that a job has ended; the first was its host.
struct job_on_two_nodes : jobs {
  running_node first = start_node("first");
  running_node second = start_node("second", {"--join", first.address});

  job_on_two_nodes() {
    await_nodes(second.address, 2);
    REQUIRE(submit(second.address, "kept", {"--steps", "20", "--workers", "1"},
                   {"--node", first.address, "--mirror", here.path("mirror").string(), "--watch"})
                .status == exit_status{0, {}});
    REQUIRE(becomes_true([&] { return contains(read_file(record("second")), "completed"); }));
  }

  [[nodiscard]] std::filesystem::path record(const std::string& state) const {
    return here.path(state) / "kept" / "job.json";
  }

  static void kill(running_node& node) {
    node.process.signal(SIGKILL);
    node.process.wait();
  }

  void remove_while_away(running_node& away, const std::string& its_state, const running_node& there,
                         const std::string& state) {
    kill(away);
    const auto removed = troupe(there.address, {"rm", "kept"});
    INFO(removed.out << removed.err);
    CHECK(removed.status == exit_status{0, {}});
    CHECK(contains(removed.out, "its mirror " + here.path("mirror").string() + " is left"));
    // It is known until all have heard of it.
    CHECK(becomes_true([&] { return names_in(here.path(state) / "kept") == std::set<std::string>{"job.json"}; }));
    CHECK(nlohmann::json::parse(troupe(there.address, {"runs", "--json"}).out)["jobs"].empty());
    const auto again = start_node(its_state, {"--listen", away.address, "--join", there.address});
    for (const auto& each : {its_state, state})
      CHECK(becomes_true([&] { return names_in(here.path(each)) == std::set<std::string>{".lock"}; }));
    CHECK(nlohmann::json::parse(troupe(again.address, {"runs", "--json"}).out)["jobs"].empty());
    CHECK(std::filesystem::exists(here.path("mirror") / "kept" / "checkpoints"));
  }
};

} // namespace

TEST_CASE_FIXTURE(job_on_two_nodes, "a job is removed from all nodes that keep it, also from one that was away") {
  remove_while_away(second, "second", first, "first");
}

TEST_CASE_FIXTURE(job_on_two_nodes, "a job whose host is away is removed by another node that keeps it") {
  remove_while_away(first, "first", second, "second");
}

TEST_CASE_FIXTURE(job_on_two_nodes, "a node that was away for days hears that a job has ended") {
  kill(first);
  kill(second);
  // As if the second had been away since before the end, which was in 1970.
  auto job = nlohmann::json::parse(read_file(record("first")));
  job["end"]["at"] = 1;
  std::ofstream{record("first")} << job;
  job.erase("end");
  std::ofstream{record("second")} << job;
  const auto host = start_node("first", {"--listen", first.address});
  const auto keeper = start_node("second", {"--listen", second.address, "--join", first.address});
  CHECK(becomes_true([&] { return contains(read_file(record("second")), "completed"); }, 30s));
  CHECK(drivers().empty());
}

TEST_CASE_FIXTURE(jobs, "a node that is started again goes on with its jobs, and two nodes share no state") {
  auto node = start_node("state");
  REQUIRE(submit(node.address, "run", {"--steps", "1000000", "--workers", "1", "--checkpoint-every", "100"}).status ==
          exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(node.address, "run") > 250; }));
  auto refused = here.start({caf_node_program(), "--state", here.path("state").string()});
  CHECK(refused.wait() == exit_status{1, {}});
  CHECK(contains(refused.err(), "another caf-node's"));
  node.process.signal(SIGKILL);
  node.process.wait();
  CHECK(becomes_true([&] { return drivers().empty(); }));
  const auto again = start_node("state", {"--listen", node.address});
  REQUIRE(becomes_true([&] { return !drivers().empty(); }));
  const auto reached = step(node.address, "run");
  REQUIRE(becomes_true([&] { return step(node.address, "run") > reached + 200; }));
  CHECK(troupe(node.address, {"stop", "run"}).status == exit_status{0, {}});
  const auto result = result_in("state", "run");
  CHECK(result["status"] == "stopped");
  CHECK(result["resumed_from_step"].get<std::uint64_t>() >= 100);
  CHECK(result["state_sha256"] == here.state_after(result["steps"]));
}

TEST_CASE_FIXTURE(jobs, "another node goes on with a job from its mirror when the host of its driver is lost, and the "
                        "lost one leaves it alone when it comes back") {
  const std::vector<std::string> soon{"--take-over-after", "1"};
  auto first = start_node("first", soon);
  auto join = soon;
  join.insert(join.end(), {"--join", first.address});
  const auto second = start_node("second", join);
  const auto third = start_node("third", join);
  await_nodes(second.address, 3);
  const auto submitted =
      submit(second.address, "run", {"--steps", "1000000", "--workers", "2", "--checkpoint-every", "200"},
             {"--node", first.address, "--mirror", here.path("mirror").string()});
  INFO(submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  CHECK(contains(submitted.out, "goes on elsewhere if that host is lost"));
  REQUIRE(becomes_true([&] { return std::filesystem::exists(here.path("mirror") / "run" / "checkpoints"); }));
  REQUIRE(becomes_true([&] { return step(second.address, "run") > 900; }));
  auto watching = here.start(command({"watch", "run"}, second.address));
  first.process.signal(SIGKILL);
  first.process.wait();
  const auto host = [&] {
    const auto ran = troupe(second.address, {"runs", "--json"});
    INFO(ran.out << ran.err);
    const auto listed = nlohmann::json::parse(ran.out, nullptr, false);
    REQUIRE(listed.is_object());
    REQUIRE(listed["jobs"].size() == 1);
    return listed["jobs"][0]["node"].get<std::string>();
  };
  REQUIRE(becomes_true([&] { return host() != first.address; }));
  const auto other = host();
  REQUIRE(becomes_true([&] { return step(second.address, "run") > 900; }));
  const auto started = drivers();
  // The node with the earlier term comes back, and hears of the later one before it starts a driver.
  const auto again = start_node("first", {"--listen", first.address, "--join", second.address});
  CHECK(becomes_true([&] { return contains(again.process.err(), "this node gives it up"); }));
  CHECK(drivers() == started);
  CHECK(troupe(second.address, {"stop", "run"}).status == exit_status{0, {}});
  // Who watches it follows it: what the watcher reads in between depends on when it asks.
  const auto watched = watching.wait();
  INFO(watching.out() << watching.err());
  CHECK(watched == exit_status{0, {}});
  const auto result = result_in(other == second.address ? "second" : "third", "run");
  CHECK(result["status"] == "stopped");
  CHECK(result["resumed_from_step"].get<std::uint64_t>() >= 200);
  CHECK(result["state_sha256"] == here.state_after(result["steps"]));
  // All keepers know of the end.
  CHECK(becomes_true([&] {
    for (const auto& state : {"first", "second", "third"})
      if (!contains(read_file(here.path(state) / "run" / "job.json"), "\"stopped\""))
        return false;
    return true;
  }));
}

TEST_CASE_FIXTURE(jobs, "a node that ends hands its jobs over after a checkpoint, and stops those that cannot move") {
  auto first = start_node("first");
  const auto second = start_node("second", {"--join", first.address});
  await_nodes(second.address, 2);
  REQUIRE(submit(second.address, "moves", {"--steps", "1000000", "--workers", "1"},
                 {"--node", first.address, "--mirror", here.path("mirror").string()})
              .status == exit_status{0, {}});
  REQUIRE(submit(second.address, "stays", {"--steps", "1000000", "--workers", "1"}, {"--node", first.address}).status ==
          exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(first.address, "moves") > 50 && step(first.address, "stays") > 50; }));
  REQUIRE(becomes_true([&] { return std::filesystem::exists(here.path("second") / "moves" / "job.json"); }));
  first.process.signal(SIGTERM);
  CHECK(first.process.wait() == exit_status{0, {}});
  INFO(first.process.err());
  const auto saved = result_in("first", "moves")["steps"].get<std::uint64_t>();
  CHECK(saved > 50);
  CHECK(becomes_true([&] { return step(second.address, "moves") > saved; }));
  CHECK(troupe(second.address, {"stop", "moves"}).status == exit_status{0, {}});
  CHECK(result_in("second", "moves")["resumed_from_step"] == saved);
  const auto listed = nlohmann::json::parse(troupe(second.address, {"runs", "--json"}).out);
  for (const auto& each : listed["jobs"])
    CHECK(each["state"] == (each["name"] == "moves" ? "stopped" : "running"));
  // The other one waits for its node.
  CHECK(contains(troupe(second.address, {"status", "stays"}).err, "has no job stays"));
  const auto again = start_node("first", {"--listen", first.address});
  const auto stopped = result_in("first", "stays")["steps"].get<std::uint64_t>();
  CHECK(becomes_true([&] { return step(again.address, "stays") > stopped; }));
  INFO(again.process.err());
  CHECK(troupe(again.address, {"stop", "stays"}).status == exit_status{0, {}});
  CHECK(result_in("first", "stays")["resumed_from_step"] == stopped);
}
