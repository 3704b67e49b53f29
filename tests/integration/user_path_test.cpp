#include "links.hpp"
#include "scratch_runs.hpp"
#include "submission.hpp"

#include <troupe/runtime/node_host.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// The whole path, as docs/clusters.md and docs/jobs.md have a user walk it: certificates, nodes, a job, what happens to
// its hosts, and what is left in the end. In between nothing is tested that the tests of the parts do not test better.

using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;
using troupe::chaos::private_network;

/// More steps than a test has time for.
const auto endless = std::string{"10000000"};

nlohmann::json read_json(const fs::path& path) {
  return nlohmann::json::parse(read_file(path));
}

/// Three hosts and the user's own. Each has a network, a host name, a directory of keys and one for its node's state;
/// names are resolved by an /etc/hosts that only they see.
class hosts {
 public:
  static constexpr std::size_t count = 3;
  static constexpr std::size_t own = count;
  scratch_runs here;

  hosts() {
    std::string reason;
    network_ = private_network::make(count, reason);
    if (network_ == nullptr) {
      std::printf("SKIP: %s (the whole path over three hosts)\n", reason.c_str());
      return;
    }
    auto names = std::string{"127.0.0.1 localhost\n"};
    for (std::size_t i = 0; i < count; ++i)
      names += private_network::address_of(i) + " " + name_of(i) + "\n";
    write_file(here.path("hosts"), names);
    fs::create_directory(here.path("desk"));
  }

  [[nodiscard]] bool are_possible() const { return network_ != nullptr; }

  [[nodiscard]] static std::string name_of(std::size_t host) {
    return host == own ? "desk" : "host" + std::to_string(host);
  }
  [[nodiscard]] static std::string address_of(std::size_t host) { return name_of(host) + ":4000"; }
  [[nodiscard]] fs::path keys_of(std::size_t host) const { return here.path("keys-" + name_of(host)); }
  [[nodiscard]] fs::path state_of(std::size_t host) const { return here.path("state-" + name_of(host)); }

  [[nodiscard]] static std::size_t host_of(const std::string& address) {
    for (std::size_t i = 0; i < count; ++i)
      if (address_of(i) == address)
        return i;
    throw std::runtime_error{"no host has the address " + address};
  }

  [[nodiscard]] static std::string cluster() { return address_of(0) + "," + address_of(1) + "," + address_of(2); }

  [[nodiscard]] child_process start_at(std::size_t host, const std::vector<std::string>& words) {
    auto argv = host == own ? network_->at_driver() : network_->at_node(host);
    argv.insert(argv.begin(), "/usr/bin/env");
    argv.insert(argv.end(), {"unshare", "--mount", "--uts", "sh", "-c",
                             R"(hostname "$1" && mount --bind "$2" /etc/hosts && cd "$3" && shift 3 && exec "$@")",
                             "sh", name_of(host), here.path("hosts").string(), here.path("desk").string()});
    argv.insert(argv.end(), words.begin(), words.end());
    std::map<std::string, std::string> environment{{"TROUPE_KEYS", keys_of(host).string()}};
    if (host == own)
      environment["TROUPE_CLUSTER"] = cluster();
    return here.start(std::move(argv), std::move(environment));
  }

  [[nodiscard]] child_process start_troupe(std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    return start_at(own, words);
  }

  /// Runs `troupe` on the user's own host.
  outcome troupe(std::vector<std::string> words) {
    auto process = start_troupe(std::move(words));
    const auto status = process.wait(5 * hang_limit);
    return {status, process.out(), process.err()};
  }

  outcome succeeds(std::vector<std::string> words) {
    auto ran = troupe(std::move(words));
    INFO(ran.out << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return ran;
  }

  /// `troupe certs issue`, and the copies that it asks for.
  void issue(std::size_t host, const std::string& role) {
    succeeds({"certs", "issue", name_of(host), "--role", role, "--keys", here.path("authority").string()});
    const auto place = keys_of(host) / "cluster";
    fs::create_directories(place);
    for (const auto& directory : {keys_of(host), place})
      fs::permissions(directory, fs::perms::owner_all);
    for (const auto& file : {std::string{"ca.pem"}, name_of(host) + ".pem", name_of(host) + ".key"})
      fs::copy_file(here.path("authority") / "cluster" / file, place / file);
  }

  [[nodiscard]] running_node start_node(std::size_t host) {
    std::vector<std::string> words{
        caf_node_program(),  "--listen", address_of(host), "--join", cluster(), "--state", state_of(host).string(),
        "--take-over-after", "2"};
    // The others lack the program, and take it.
    if (host == 0)
      words.insert(words.end(), {"--program-dir", scratch_runs::programs()});
    else
      words.emplace_back("--accept-programs");
    return here.await_node(start_at(host, words));
  }

  /// The only job of the cluster; null while no node answers.
  [[nodiscard]] nlohmann::json job() {
    const auto ran = troupe({"runs", "--json"});
    const auto listed = nlohmann::json::parse(ran.out, nullptr, false);
    return listed.is_object() && listed["jobs"].size() == 1 ? listed["jobs"][0] : nlohmann::json{};
  }

  [[nodiscard]] std::uint64_t step() {
    const auto now = job();
    return now.is_object() ? now.value("step", std::uint64_t{0}) : 0;
  }

  [[nodiscard]] bool goes_beyond(std::uint64_t wanted) {
    return becomes_true([&] { return step() > wanted; }, 3 * hang_limit);
  }

  /// The host of the job's driver.
  [[nodiscard]] std::size_t driver_host() { return host_of(job().at("node").get<std::string>()); }

  /// Whether the job comes to another host, and trains there. Until then its steps are those of the earlier driver.
  [[nodiscard]] bool leaves(std::size_t host) {
    return becomes_true(
        [&] {
          const auto now = job();
          return now.is_object() && now.value("node", std::string{}) != address_of(host) &&
                 now.value("state", std::string{}) == "running";
        },
        3 * hang_limit);
  }

 private:
  std::unique_ptr<private_network> network_;
};

/// Nodes on loopback.
class local_nodes {
 public:
  scratch_runs here;

  [[nodiscard]] running_node start_node(const std::string& state, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--state", here.path(state).string(), "--program-dir", scratch_runs::programs()});
    return here.start_node(std::move(more));
  }

  outcome troupe(const std::string& cluster, std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    return here.run(std::move(words), {{"TROUPE_CLUSTER", cluster}});
  }

  [[nodiscard]] nlohmann::json status(const std::string& cluster, const std::string& name) {
    const auto said = nlohmann::json::parse(troupe(cluster, {"status", name, "--json"}).out, nullptr, false);
    return said.is_object() ? said : nlohmann::json::object();
  }

  [[nodiscard]] std::uint64_t step(const std::string& cluster, const std::string& name) {
    return status(cluster, name).value("step", std::uint64_t{0});
  }

  [[nodiscard]] std::string state_of_steps(const std::string& name, std::uint64_t steps) {
    const auto ran = here.run(here.charlm(name, {"--steps", std::to_string(steps), "--workers", "1"}));
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return here.result(name)["state_sha256"];
  }
};

} // namespace

TEST_CASE_FIXTURE(hosts,
                  "a run on three hosts outlives the terminal, the host of its driver and a drained one, and goes "
                  "on from its mirror") {
  if (!are_possible())
    return;
  succeeds({"certs", "init", "--keys", here.path("authority").string()});
  for (std::size_t i = 0; i < count; ++i)
    issue(i, "both");
  issue(own, "driver");
  std::vector<std::optional<running_node>> nodes;
  for (std::size_t i = 0; i < count; ++i)
    nodes.emplace_back(start_node(i));
  REQUIRE(becomes_true([&] { return nlohmann::json::parse(troupe({"nodes", "--json"}).out).size() == count; }));
  const auto log = [&] {
    std::string result;
    for (auto& each : nodes)
      result += each->process.err();
    return result;
  };

  // A terminal that is closed ends what runs in it.
  {
    auto words = submission(here, "night", {"--mirror", here.path("mirror").string(), "--watch"},
                            {"--steps", endless, "--workers", "3", "--placement", "spread", "--checkpoint-every", "200",
                             "--driver-grace", "10"});
    *std::ranges::find(words, "charlm") = charlm_program();
    auto terminal = start_troupe(std::move(words));
    here.await(terminal, [&] { return step() > 300; });
    terminal.signal_group(SIGHUP);
    CHECK(terminal.wait() == exit_status{{}, SIGHUP});
  }
  auto watching = start_troupe({"watch", "night"});
  auto reached = step();
  REQUIRE(goes_beyond(reached + 100));
  REQUIRE(becomes_true([&] { return !fs::is_empty(here.path("mirror") / "night" / "checkpoints"); }));

  const auto lost = driver_host();
  reached = step();
  nodes[lost]->process.signal(SIGKILL);
  nodes[lost]->process.wait();
  INFO(log());
  REQUIRE(leaves(lost));
  REQUIRE(goes_beyond(reached + 100));

  const auto drained = driver_host();
  REQUIRE(drained != lost);
  reached = step();
  succeeds({"drain", address_of(drained), "--wait"});
  REQUIRE(leaves(drained));
  REQUIRE(goes_beyond(reached + 100));
  const auto last = driver_host();
  CHECK(last == 3 - lost - drained);

  succeeds({"stop", "night"});
  CHECK(watching.wait() == exit_status{0, {}});
  CHECK(contains(watching.out(), "stopped"));
  const auto stopped = read_json(state_of(last) / "night" / "runs" / "night" / "result.json");
  CHECK(stopped["status"] == "stopped");
  const auto saved = stopped["steps"].get<std::uint64_t>();
  CHECK(stopped["resumed_from_step"].get<std::uint64_t>() > reached);

  // The user goes on at the own desk, where no file of the run is.
  succeeds({"resume", address_of(drained)});
  auto words = here.charlm("night", {"--steps", std::to_string(saved + 200), "--workers", "2", "--placement", "spread",
                                     "--cluster", cluster(), "--mirror", here.path("mirror").string(), "--resume",
                                     "required", "--storage", here.path("desk/runs").string()});
  auto driver = start_at(own, words);
  const auto status = driver.wait(5 * hang_limit);
  INFO(driver.out() << driver.err());
  REQUIRE(status == exit_status{0, {}});
  const auto result = read_json(here.path("desk/runs/night/result.json"));
  CHECK(result["status"] == "completed");
  CHECK(result["resumed_from_step"] == saved);

  const auto alone = here.run(here.charlm("alone", {"--steps", std::to_string(saved + 200), "--workers", "1"}));
  REQUIRE(alone.status == exit_status{0, {}});
  CHECK(result["state_sha256"] == here.result("alone")["state_sha256"]);
  succeeds({"checkpoint", "export", "runs/night", "model.safetensors"});
  succeeds({"checkpoint", "import", "model.safetensors", "imported"});
  succeeds({"checkpoint", "diff", "imported", here.run_directory("alone").string()});

  for (std::size_t i = 0; i < count; ++i)
    if (i != lost) {
      nodes[i]->process.signal(SIGTERM);
      CHECK(nodes[i]->process.wait() == exit_status{0, {}});
    }
}

TEST_CASE_FIXTURE(local_nodes,
                  "another node goes on with a job in a directory that all share when the node of its driver is lost") {
  const std::vector<std::string> soon{"--take-over-after", "1"};
  auto first = start_node("first", soon);
  auto join = soon;
  join.insert(join.end(), {"--join", first.address});
  const auto second = start_node("second", join);
  const auto third = start_node("third", join);
  const auto cluster = second.address;
  REQUIRE(becomes_true([&] { return nlohmann::json::parse(troupe(cluster, {"nodes", "--json"}).out).size() == 3; }));
  fs::create_directory(here.path("shared"));
  const auto submitted =
      troupe(cluster,
             submission(here, "run", {"--node", first.address, "--shared", "--directory", here.path("shared").string()},
                        {"--steps", endless, "--workers", "2", "--checkpoint-every", "100"}));
  INFO(submitted.out << submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  CHECK(contains(submitted.out, "goes on elsewhere if that host is lost"));
  REQUIRE(becomes_true([&] { return step(cluster, "run") > 250; }));
  first.process.signal(SIGKILL);
  first.process.wait();
  REQUIRE(becomes_true(
      [&] {
        const auto now = nlohmann::json::parse(troupe(cluster, {"runs", "--json"}).out, nullptr, false);
        return now.is_object() && now["jobs"].size() == 1 && now["jobs"][0]["node"] != first.address &&
               now["jobs"][0]["state"] == "running";
      },
      3 * hang_limit));
  const auto reached = step(cluster, "run");
  REQUIRE(becomes_true([&] { return step(cluster, "run") > reached + 100; }));
  const auto stopped = troupe(cluster, {"stop", "run"});
  INFO(stopped.out << stopped.err << second.process.err() << third.process.err());
  CHECK(stopped.status == exit_status{0, {}});
  // Workers that the lost node did not host are taken over with the run; else it goes on from a checkpoint.
  const auto result = read_json(here.path("shared") / "runs" / "run" / "result.json");
  CHECK(result["status"] == "stopped");
  CHECK((result["resumed_from_step"].get<std::uint64_t>() >= 200 || !result["generations"].empty()));
  CHECK(result["state_sha256"] == state_of_steps("alone", result["steps"]));
}

TEST_CASE_FIXTURE(local_nodes, "a job that moves waits for what the workers of its lost driver still have") {
  const std::vector<std::string> options{"--take-over-after", "1", "--cpus", "2"};
  auto first = start_node("first", options);
  auto join = options;
  join.insert(join.end(), {"--join", first.address});
  const auto second = start_node("second", join);
  const auto cluster = second.address;
  REQUIRE(becomes_true([&] { return nlohmann::json::parse(troupe(cluster, {"nodes", "--json"}).out).size() == 2; }));
  const auto submitted =
      troupe(cluster, submission(here, "run", {"--node", first.address, "--mirror", here.path("mirror").string()},
                                 {"--steps", endless, "--workers", "2", "--placement", "spread", "--cpus-per-worker",
                                  "1", "--driver-grace", "15", "--checkpoint-every", "100"}));
  INFO(submitted.out << submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(cluster, "run") > 250; }));
  REQUIRE(becomes_true([&] { return fs::exists(here.path("mirror") / "run" / "checkpoints"); }));
  first.process.signal(SIGKILL);
  first.process.wait();
  const auto driver_log = here.path("second") / "run" / "driver.log";
  INFO(second.process.err() << read_file(driver_log));
  REQUIRE(becomes_true([&] { return contains(read_file(driver_log), "waits: "); }));
  REQUIRE(becomes_true([&] { return status(cluster, "run").value("state", std::string{}) == "running"; }));
  const auto reached = step(cluster, "run");
  REQUIRE(becomes_true([&] { return step(cluster, "run") > reached + 100; }));
  CHECK(troupe(cluster, {"stop", "run"}).status == exit_status{0, {}});
  const auto result = read_json(here.path("second") / "run" / "runs" / "run" / "result.json");
  CHECK(result["status"] == "stopped");
  CHECK(result["state_sha256"] == state_of_steps("alone", result["steps"]));
}

TEST_CASE_FIXTURE(local_nodes, "a job that waits for what another has leased begins when that ends, and one that does "
                               "not wait fails and names it") {
  const auto node = start_node("state", {"--resource", "licence=1"});
  const std::vector<std::string> leases{"--steps", endless, "--workers", "1", "--resource-per-worker", "licence=1"};
  REQUIRE(troupe(node.address, submission(here, "holder", {}, leases)).status == exit_status{0, {}});
  REQUIRE(becomes_true([&] { return step(node.address, "holder") > 5; }));
  const auto hasty = troupe(node.address, submission(here, "hasty", {"--watch"}, leases));
  INFO(hasty.out << hasty.err);
  CHECK(hasty.status == exit_status{1, {}});
  CHECK(contains(hasty.out + hasty.err, "holder"));
  auto few = leases;
  few[1] = "20";
  const auto submitted = troupe(node.address, submission(here, "patient", {"--wait", "600"}, few));
  INFO(submitted.err);
  REQUIRE(submitted.status == exit_status{0, {}});
  const auto driver_log = here.path("state") / "patient" / "driver.log";
  REQUIRE(becomes_true([&] { return contains(read_file(driver_log), "holder"); }));
  CHECK(step(node.address, "patient") == 0);
  CHECK(troupe(node.address, {"stop", "holder"}).status == exit_status{0, {}});
  const auto watched = troupe(node.address, {"watch", "patient"});
  INFO(watched.out << watched.err << read_file(driver_log));
  CHECK(watched.status == exit_status{0, {}});
  const auto result = read_json(here.path("state") / "patient" / "runs" / "patient" / "result.json");
  CHECK(result["status"] == "completed");
  CHECK(result["state_sha256"] == state_of_steps("alone", 20));
}
