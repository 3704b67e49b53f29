#include "scratch_runs.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

// Clusters of caf-nodes on loopback, as `caf-node --join`, `troupe nodes` and `--cluster` make and use them.

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

class members {
 public:
  scratch_runs here;

  [[nodiscard]] running_node start_node(const std::string& join, std::vector<std::string> more = {}) {
    if (!join.empty())
      more.insert(more.end(), {"--join", join});
    return here.start_node(std::move(more));
  }

  /// What `troupe nodes` says; null if it fails.
  [[nodiscard]] nlohmann::json list(const std::string& entry) {
    const auto ran = here.run({troupe_program(), "nodes", "--json", "--cluster", entry});
    return ran.status == exit_status{0, {}} ? nlohmann::json::parse(ran.out) : nlohmann::json{};
  }

  /// The addresses of those in this state.
  [[nodiscard]] std::set<std::string> in_state(const std::string& entry, const std::string& state) {
    std::set<std::string> result;
    const auto all = list(entry);
    for (const auto& each : all)
      if (each["state"] == state)
        result.insert(each["address"].get<std::string>());
    return result;
  }

  [[nodiscard]] bool is_listed(const std::string& entry, const std::set<std::string>& wanted) {
    return becomes_true([&] { return in_state(entry, "available") == wanted; });
  }

  outcome troupe(std::vector<std::string> words, const std::string& cluster = {}) {
    words.insert(words.begin(), troupe_program());
    return here.run(std::move(words), {{"TROUPE_CLUSTER", cluster}});
  }

  /// How many workers a node has, as the cluster says.
  [[nodiscard]] std::uint32_t workers_on(const std::string& entry, const std::string& address) {
    const auto all = list(entry);
    for (const auto& each : all)
      if (each["address"] == address)
        return each["workers"].get<std::uint32_t>();
    return 0;
  }
};

} // namespace

TEST_CASE_FIXTURE(members,
                  "a run on a cluster grows onto a node that joins later, and does not notice that its entry dies") {
  auto alone = here.run(here.charlm("alone", {"--steps", "6000", "--workers", "1"}));
  INFO(alone.err);
  REQUIRE(alone.status == exit_status{0, {}});

  auto entry = start_node({}, {"--cpus", "1"});
  auto second = start_node(entry.address, {"--cpus", "1"});
  REQUIRE(is_listed(entry.address, {entry.address, second.address}));
  // Any member may be asked, and the entry node may come back under its address.
  auto driver = here.start(here.charlm(
      "run", {"--steps", "6000", "--cluster", second.address + "," + entry.address, "--workers", "1-3", "--ledger"}));
  here.await(driver, [&] { return here.workers().size() == 2; });
  here.await_step(driver, "run", 50);
  auto third = start_node(second.address, {"--cpus", "1"});
  here.await(driver, [&] { return here.workers().size() == 3; });
  CHECK(becomes_true([&] { return workers_on(second.address, third.address) == 1; }));
  here.await_step(driver, "run", here.last_step("run") + 50);
  const auto status = driver.wait(3 * hang_limit);
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  const auto result = here.result("run");
  CHECK(result["failures"].empty());
  CHECK(result["state_sha256"] == here.result("alone")["state_sha256"]);
}

TEST_CASE_FIXTURE(members, "an entry node that has no workers dies and comes back, and a run does not notice") {
  auto entry = start_node({});
  auto first = start_node(entry.address);
  REQUIRE(is_listed(entry.address, {entry.address, first.address}));
  CHECK(troupe({"drain", entry.address}).status == exit_status{0, {}});
  CHECK(becomes_true([&] { return in_state(entry.address, "drained") == std::set{entry.address}; }));
  auto driver = here.start(here.charlm("run", {"--steps", "1000000", "--cluster", entry.address, "--workers", "2"}));
  here.await_step(driver, "run", 20);
  entry.process.signal(SIGKILL);
  entry.process.wait();
  here.await(driver, [&] { return contains(driver.err(), "no entry node of the cluster answers"); });
  here.await_step(driver, "run", here.last_step("run") + 50);
  // At the address that the others know.
  auto again = here.start_node({"--listen", entry.address});
  here.await(driver, [&] { return contains(driver.err(), "an entry node of the cluster answers again"); });
  CHECK(becomes_true([&] { return list(entry.address).size() == 2; }));
  driver.signal(SIGTERM);
  CHECK(driver.wait() == exit_status{143, {}});
  CHECK(here.result("run")["failures"].empty());
  CHECK(here.result("run")["generations"].empty());
}

TEST_CASE_FIXTURE(members, "troupe drain moves a node's workers away, and troupe resume has it take some again") {
  auto entry = start_node({});
  auto other = start_node(entry.address);
  REQUIRE(is_listed(entry.address, {entry.address, other.address}));
  auto driver = here.start(here.charlm(
      "run", {"--steps", "1000000", "--cluster", entry.address, "--workers", "2", "--placement", "spread"}));
  here.await_step(driver, "run", 20);
  CHECK(becomes_true([&] { return workers_on(entry.address, other.address) == 1; }));
  // Its address, or the host's name if that is only one node's.
  const auto ambiguous = troupe({"drain", "127.0.0.1", "--cluster", entry.address});
  CHECK(ambiguous.status == exit_status{1, {}});
  CHECK(contains(ambiguous.err, "2 nodes are on 127.0.0.1"));
  const auto drained = troupe({"drain", other.address, "--wait"}, entry.address);
  INFO(drained.out << drained.err << driver.err());
  REQUIRE(drained.status == exit_status{0, {}});
  CHECK(contains(drained.out, "takes none until `troupe resume " + other.address + "`"));
  CHECK(becomes_true([&] { return in_state(entry.address, "drained") == std::set{other.address}; }));
  CHECK(other.process.running());
  CHECK(workers_on(entry.address, other.address) == 0);
  here.await_step(driver, "run", here.last_step("run") + 20);
  // A run that comes now goes elsewhere.
  const auto more =
      here.run(here.charlm("more", {"--cluster", entry.address, "--workers", "2", "--placement", "spread"}));
  INFO(more.err);
  CHECK(more.status == exit_status{0, {}});
  const auto other_run = here.result("more");
  for (const auto& worker : other_run["workers"])
    CHECK(worker["node"] == entry.address);
  // One that names the node is told why it cannot begin.
  const auto refused = here.run(here.charlm("refused", {"--nodes", other.address}));
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "it is drained, and takes no workers until `troupe resume`"));

  CHECK(troupe({"resume", other.address}).status == exit_status{0, {}});
  CHECK(is_listed(entry.address, {entry.address, other.address}));
  // A lost worker is replaced on either again.
  send_signal(here.workers().at(0), SIGKILL);
  here.await(driver, [&] { return workers_on(entry.address, other.address) == 1; });
  driver.signal(SIGTERM);
  CHECK(driver.wait() == exit_status{143, {}});
  const auto result = here.result("run");
  CHECK(result["failures"].size() == 1);
  CHECK(result["generations"][0]["steps_redone"] == 0);
}

TEST_CASE_FIXTURE(members, "troupe nodes, drain and resume say what is wrong, and exit accordingly") {
  auto ran = troupe({"nodes"});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "TROUPE_CLUSTER"));
  ran = troupe({"nodes"}, "127.0.0.1:1");
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "cannot reach 127.0.0.1:1"));
  ran = troupe({"drain"});
  CHECK(ran.status == exit_status{2, {}});
  auto node = start_node({});
  ran = troupe({"drain", "nowhere"}, node.address);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "the cluster has no node nowhere"));
  ran = troupe({"nodes"}, node.address);
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "ADDRESS"));
  CHECK(contains(ran.out, node.address));
  ran = here.run(here.charlm("none", {"--cluster", "127.0.0.1:1"}));
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "cannot reach 127.0.0.1:1"));
  ran = here.run(here.charlm("both", {"--cluster", node.address, "--nodes", node.address}));
  CHECK(ran.status == exit_status{2, {}});
}

TEST_CASE_FIXTURE(members, "a host file names the nodes of a run, and its slots limit their workers") {
  const auto first = start_node({});
  const auto second = start_node({});
  write_file(here.path("hosts"), "# two nodes\n" + first.address + " slots=1\n" + second.address + "  slots=2\n");
  auto ran = here.run(here.charlm("run", {"--hosts", here.path("hosts").string(), "--workers", "3"}));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  std::multiset<std::string> nodes;
  const auto result = here.result("run");
  for (const auto& worker : result["workers"])
    nodes.insert(worker["node"].get<std::string>());
  INFO(result.dump());
  CHECK(nodes == std::multiset<std::string>{first.address, second.address, second.address});
  ran = here.run(here.charlm("more", {"--hosts", here.path("hosts").string(), "--workers", "4"}));
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "4 workers do not fit into the slots of the nodes"));
  write_file(here.path("hosts"), first.address + " slots=none\n");
  ran = here.run(here.charlm("wrong", {"--hosts", here.path("hosts").string()}));
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, here.path("hosts").string() + ":1: "));
}

TEST_CASE_FIXTURE(members, "a run listens within its range of ports, and says what it needs where that is used up") {
  const auto first = start_node({});
  const auto second = start_node({});
  const auto train = [&](const std::string& name, int from, int to) {
    return here.run(here.charlm(name, {"--nodes", first.address + "," + second.address, "--workers", "4",
                                       "--port-range", fmt::format("{}-{}", from, to)}));
  };
  // Tests that run at the same time take others, mostly: a wide range has enough for all.
  const auto from = 20'000 + 60 * (static_cast<int>(::getpid()) % 150);
  const auto wide = train("wide", from, from + 59);
  INFO(wide.err);
  REQUIRE(wide.status == exit_status{0, {}});
  const auto narrow = train("narrow", from, from + 1);
  INFO(narrow.err);
  CHECK(narrow.status == exit_status{1, {}});
  CHECK(contains(narrow.err, fmt::format("no port of cluster.ports, {}-{}, is free at 127.0.0.1", from, from + 1)));
  CHECK(contains(narrow.err, "a host needs two for each of its workers, and the driver's host one more"));
  CHECK(here.workers_vanish());
}

TEST_CASE_FIXTURE(members,
                  "caf-node takes its options from a file, the environment and the command line, in rising order") {
  const auto file = here.path("node.conf");
  write_file(
      file,
      "# of this host\nlisten = \"127.0.0.1:0\"\ncpus = 3\ngrace = 7\njoin = [\"10.0.0.1:4000\", \"10.0.0.2:4000\"]\n");
  const auto dump = [&](std::vector<std::string> more, std::map<std::string, std::string> variables = {}) {
    more.insert(more.begin(), {caf_node_program(), "--dump-config", "--config", file.string()});
    return here.run(std::move(more), std::move(variables));
  };
  auto ran = dump({});
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "cpus = 3\n"));
  CHECK(contains(ran.out, "join = [\"10.0.0.1:4000\", \"10.0.0.2:4000\"]\n"));
  CHECK(contains(dump({}, {{"TROUPE_NODE_CPUS", "4"}}).out, "cpus = 4\n"));
  ran = dump({"--cpus", "5"}, {{"TROUPE_NODE_CPUS", "4"}, {"TROUPE_NODE_JOIN", "10.0.0.3:1,10.0.0.4:1"}});
  CHECK(contains(ran.out, "cpus = 5\n"));
  CHECK(contains(ran.out, "join = [\"10.0.0.3:1\", \"10.0.0.4:1\"]\n"));
  CHECK(contains(ran.out, "grace = 7\n"));
  // Options whose value may be left out are off unless they are given.
  CHECK(contains(ran.out, "# accept-programs = "));
  CHECK(contains(ran.out, "# dashboard = "));
  // What it prints is such a file.
  write_file(file, ran.out);
  CHECK(dump({}).out == ran.out);

  write_file(file, "cpus = 3\nlisten-on = here\n");
  ran = dump({});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, file.string() + ":2: unknown key 'listen-on' (did you mean 'listen'?)"));
  write_file(file, "cpus = many\n");
  ran = dump({});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, file.string() + ":1: "));
  ran = dump({"--cpus", "1"}, {{"TROUPE_NODE_GRACE", "soon"}});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "TROUPE_NODE_GRACE"));
  write_file(file, "cpus 3\n");
  CHECK(dump({}).status == exit_status{2, {}});
  CHECK(here.run({caf_node_program(), "--config", here.path("no").string()}).status == exit_status{2, {}});
  // The user's own file counts where none is named.
  std::filesystem::create_directories(here.path("config") / "troupe");
  write_file(here.path("config") / "troupe" / "caf-node.conf", "cpus = 6\n");
  CHECK(
      contains(here.run({caf_node_program(), "--dump-config"}, {{"XDG_CONFIG_HOME", here.path("config").string()}}).out,
               "cpus = 6\n"));
  CHECK(here.run({caf_node_program(), "--join", "10.0.0.1"}).status == exit_status{2, {}});
}

TEST_CASE_FIXTURE(members, "many nodes form a cluster, and it heals after some are killed") {
  const auto is_long = std::getenv("TROUPE_LONG_TESTS") != nullptr;
  const auto count = is_long ? 50u : 12u;
  const auto killed = is_long ? 10u : 3u;
  std::vector<running_node> nodes;
  nodes.push_back(start_node({}));
  nodes.push_back(start_node(nodes[0].address));
  const auto join = nodes[0].address + "," + nodes[1].address;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<child_process> starting;
  for (auto i = 2u; i < count; ++i)
    starting.push_back(here.start({caf_node_program(), "--join", join}));
  for (auto& each : starting)
    nodes.push_back(scratch_runs::await_node(std::move(each)));
  std::set<std::string> living;
  for (const auto& each : nodes)
    living.insert(each.address);
  fmt::print("{} nodes listen after {:.2f} s\n", count, seconds());
  CHECK(is_listed(nodes[0].address, living));
  fmt::print("and are a cluster after {:.2f} s\n", seconds());
  CHECK(is_listed(nodes[1].address, living));
  std::vector<std::uint64_t> memory;
  for (const auto& each : nodes) {
    const auto text = read_file("/proc/" + std::to_string(each.process.pid()) + "/smaps_rollup");
    for (const auto* what : {"Rss:", "Pss:"})
      if (const auto mark = text.find(what); mark != std::string::npos)
        memory.push_back(std::strtoull(text.c_str() + mark + 4, nullptr, 10));
  }
  if (memory.size() == 2 * nodes.size())
    fmt::print("the entry node has {} KiB resident ({} KiB of its own share), another {} KiB ({} KiB)\n", memory[0],
               memory[1], memory[memory.size() - 2], memory.back());
  // The second entry node is among them.
  const auto before = seconds();
  for (auto i = 1u; i <= killed; ++i) {
    nodes[i].process.signal(SIGKILL);
    living.erase(nodes[i].address);
  }
  CHECK(is_listed(nodes[0].address, living));
  fmt::print("healed {:.2f} s after {} were killed\n", seconds() - before, killed);
  // One that was killed comes back as itself.
  const auto again = here.start_node({"--join", join, "--listen", nodes[2].address});
  living.insert(again.address);
  CHECK(is_listed(nodes[0].address, living));
}
