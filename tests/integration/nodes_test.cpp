#include "scratch_runs.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

// How drivers learn which nodes there are, and how tools ask nodes: caf-nodes on loopback.

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

class nodes {
 public:
  scratch_runs here;

  [[nodiscard]] running_node start_node(std::vector<std::string> more = {}) { return here.start_node(std::move(more)); }

  /// A host file with these nodes. It is replaced as a whole: who reads it sees the old one or the new one.
  void write_hosts(const std::vector<std::string>& lines) {
    write_file(here.path("hosts.new"), fmt::format("{}\n", fmt::join(lines, "\n")));
    std::filesystem::rename(here.path("hosts.new"), here.path("hosts"));
  }
  [[nodiscard]] std::string hosts() const { return here.path("hosts").string(); }

  outcome troupe(std::vector<std::string> words, const std::string& nodes = {}) {
    words.insert(words.begin(), troupe_program());
    return here.run(std::move(words), {{"TROUPE_NODES", nodes}});
  }

  /// What `troupe nodes` says of one.
  [[nodiscard]] nlohmann::json ask(const std::string& address) {
    const auto ran = troupe({"nodes", "--json"}, address);
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return nlohmann::json::parse(ran.out).at(0);
  }
  [[nodiscard]] std::uint32_t workers_on(const std::string& address) { return ask(address)["workers"]; }
  [[nodiscard]] std::string state_of(const std::string& address) { return ask(address)["state"]; }
};

} // namespace

TEST_CASE_FIXTURE(nodes,
                  "a run grows onto nodes that are named later, leaves those that are named no more, and has the "
                  "bits of an undisturbed one") {
  std::vector<running_node> all;
  for (auto i = 0; i < 3; ++i)
    all.push_back(start_node({"--cpus", "1"}));
  write_hosts({all[0].address, all[1].address});
  std::vector<std::string> source{"--hosts", hosts()};
  SUBCASE("by a host file") {}
  SUBCASE("by a script") {
    write_file(here.path("script"), "#!/bin/sh\ncat " + hosts() + "\n");
    std::filesystem::permissions(here.path("script"), std::filesystem::perms::owner_all);
    source = {"--discover", here.path("script").string()};
  }
  source.insert(source.end(), {"--steps", "1000000", "--workers", "1-3"});
  auto driver = here.start(here.charlm("run", source));
  here.await(driver, [&] { return here.workers().size() == 2; });
  here.await_step(driver, "run", 50);
  write_hosts({all[0].address, all[1].address, all[2].address});
  here.await(driver, [&] { return workers_on(all[2].address) == 1; });
  // A file that cannot be read changes nothing.
  write_hosts({"what is this"});
  here.await(driver, [&] { return contains(driver.err(), "it cannot be learnt which nodes there are"); });
  write_hosts({all[1].address, all[2].address});
  here.await(driver, [&] { return contains(driver.err(), all[0].address + " is named no more"); });
  here.await(driver, [&] { return workers_on(all[0].address) == 0; });
  here.await_step(driver, "run", here.last_step("run") + 20);
  driver.signal(SIGTERM);
  CHECK(driver.wait() == exit_status{143, {}});
  const auto result = here.result("run");
  CHECK(result["failures"].empty());
  const auto alone =
      here.run(here.charlm("alone", {"--steps", std::to_string(result["steps"].get<int>()), "--workers", "1"}));
  INFO(alone.err);
  REQUIRE(alone.status == exit_status{0, {}});
  CHECK(result["state_sha256"] == here.result("alone")["state_sha256"]);
}

TEST_CASE_FIXTURE(nodes, "troupe drain moves a node's workers away, and troupe resume has it take some again") {
  auto first = start_node();
  auto other = start_node();
  const auto both = first.address + "," + other.address;
  write_hosts({first.address, other.address});
  auto driver = here.start(
      here.charlm("run", {"--steps", "1000000", "--hosts", hosts(), "--workers", "2", "--placement", "spread"}));
  here.await_step(driver, "run", 20);
  CHECK(becomes_true([&] { return workers_on(other.address) == 1; }));
  // Its address, or the host's name if that is only one node's.
  const auto ambiguous = troupe({"drain", "127.0.0.1", "--nodes", both});
  CHECK(ambiguous.status == exit_status{1, {}});
  CHECK(contains(ambiguous.err, "2 nodes are on 127.0.0.1"));
  const auto drained = troupe({"drain", other.address, "--wait"});
  INFO(drained.out << drained.err << driver.err());
  REQUIRE(drained.status == exit_status{0, {}});
  CHECK(contains(drained.out, "takes none until `troupe resume " + other.address + "`"));
  CHECK(state_of(other.address) == "drained");
  CHECK(other.process.running());
  CHECK(workers_on(other.address) == 0);
  here.await_step(driver, "run", here.last_step("run") + 20);
  // A run that comes now goes elsewhere.
  const auto more = here.run(here.charlm("more", {"--hosts", hosts(), "--workers", "2", "--placement", "spread"}));
  INFO(more.err);
  CHECK(more.status == exit_status{0, {}});
  const auto other_run = here.result("more");
  for (const auto& worker : other_run["workers"])
    CHECK(worker["node"] == first.address);
  // One that names the node is told why it cannot begin.
  const auto refused = here.run(here.charlm("refused", {"--nodes", other.address}));
  CHECK(refused.status == exit_status{1, {}});
  CHECK(contains(refused.err, "it is drained, and takes no workers until `troupe resume`"));

  CHECK(troupe({"resume", other.address}).status == exit_status{0, {}});
  CHECK(state_of(other.address) == "available");
  // A lost worker is replaced on either again.
  send_signal(here.workers().at(0), SIGKILL);
  here.await(driver, [&] { return workers_on(other.address) == 1; });
  driver.signal(SIGTERM);
  CHECK(driver.wait() == exit_status{143, {}});
  const auto result = here.result("run");
  CHECK(result["failures"].size() == 1);
  CHECK(result["generations"][0]["steps_redone"] == 0);
}

TEST_CASE_FIXTURE(nodes, "troupe nodes, drain and resume say what is wrong, and exit accordingly") {
  auto ran = troupe({"nodes"});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "TROUPE_NODES"));
  ran = troupe({"nodes"}, "127.0.0.1:1");
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "cannot reach 127.0.0.1:1"));
  ran = troupe({"drain"});
  CHECK(ran.status == exit_status{2, {}});
  auto node = start_node();
  ran = troupe({"drain", "nowhere"}, node.address);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "none of the nodes is on nowhere"));
  // One that does not answer is in the list.
  ran = troupe({"nodes"}, "127.0.0.1:1," + node.address);
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "ADDRESS"));
  CHECK(contains(ran.out, node.address));
  CHECK(contains(ran.out, "silent"));
  ran = here.run(here.charlm("both", {"--hosts", "/dev/null", "--nodes", node.address}));
  CHECK(ran.status == exit_status{2, {}});
  // What there was before says what there is now.
  ran = here.run({troupe_program(), "nodes"}, {{"TROUPE_CLUSTER", node.address}});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "TROUPE_CLUSTER has gone"));
  ran = here.run(here.charlm("old", {"--cluster", node.address}));
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "--nodes, --hosts or --discover"));
  ran = here.run(here.charlm("old", {"--mlflow-experiment", "letters"}));
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "troupe-mlflow"));
}

TEST_CASE_FIXTURE(nodes, "a node that is frozen costs `troupe nodes` its deadline, and the others nothing") {
  const auto first = start_node();
  const auto second = start_node();
  first.process.signal(SIGSTOP);
  const auto ran = troupe({"nodes", "--json"}, first.address + "," + second.address);
  first.process.signal(SIGCONT);
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  const auto all = nlohmann::json::parse(ran.out);
  CHECK(all[0]["state"] == "silent");
  CHECK(all[1]["state"] == "available");
}

TEST_CASE_FIXTURE(nodes, "a host file names the nodes of a run, and its slots limit their workers") {
  const auto first = start_node();
  const auto second = start_node();
  write_file(here.path("hosts"), "# two nodes\n" + first.address + " slots=1\n" + second.address + "  slots=2\n");
  auto ran = here.run(here.charlm("run", {"--hosts", here.path("hosts").string(), "--workers", "3"}));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  std::multiset<std::string> used;
  const auto result = here.result("run");
  for (const auto& worker : result["workers"])
    used.insert(worker["node"].get<std::string>());
  INFO(result.dump());
  CHECK(used == std::multiset<std::string>{first.address, second.address, second.address});
  ran = here.run(here.charlm("more", {"--hosts", here.path("hosts").string(), "--workers", "4"}));
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "4 workers do not fit into the slots of the nodes"));
  write_file(here.path("hosts"), first.address + " slots=none\n");
  ran = here.run(here.charlm("wrong", {"--hosts", here.path("hosts").string()}));
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, here.path("hosts").string() + ":1: "));
}

TEST_CASE_FIXTURE(nodes, "a run listens within its range of ports, and says what it needs where that is used up") {
  const auto first = start_node();
  const auto second = start_node();
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

TEST_CASE_FIXTURE(nodes,
                  "caf-node takes its options from a file, the environment and the command line, in rising order") {
  const auto file = here.path("node.conf");
  write_file(file,
             "# of this host\nlisten = \"127.0.0.1:0\"\ncpus = 3\ngrace = 7\nlabel = [\"zone=a\", \"kind=big\"]\n");
  const auto dump = [&](std::vector<std::string> more, std::map<std::string, std::string> variables = {}) {
    more.insert(more.begin(), {caf_node_program(), "--dump-config", "--config", file.string()});
    return here.run(std::move(more), std::move(variables));
  };
  auto ran = dump({});
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  CHECK(contains(ran.out, "cpus = 3\n"));
  CHECK(contains(ran.out, "label = [\"zone=a\", \"kind=big\"]\n"));
  CHECK(contains(dump({}, {{"TROUPE_NODE_CPUS", "4"}}).out, "cpus = 4\n"));
  ran = dump({"--cpus", "5"}, {{"TROUPE_NODE_CPUS", "4"}, {"TROUPE_NODE_LABEL", "zone=b,kind=small"}});
  CHECK(contains(ran.out, "cpus = 5\n"));
  CHECK(contains(ran.out, "label = [\"zone=b\", \"kind=small\"]\n"));
  CHECK(contains(ran.out, "grace = 7\n"));
  CHECK_FALSE(contains(ran.out, "accept-programs"));
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
  // Who upgrades is told what has taken the place of an option that has gone.
  write_file(file, "state = \"/var/lib/troupe\"\n");
  ran = dump({});
  CHECK(ran.status == exit_status{2, {}});
  CHECK(contains(ran.err, "systemd, Slurm or Kubernetes"));
  CHECK(dump({"--accept-programs"}).status == exit_status{2, {}});
  CHECK(dump({}, {{"TROUPE_NODE_MIRROR", "/mnt"}}).status == exit_status{2, {}});
  write_file(file, "cpus 3\n");
  CHECK(dump({}).status == exit_status{2, {}});
  CHECK(here.run({caf_node_program(), "--config", here.path("no").string()}).status == exit_status{2, {}});
  // The user's own file counts where none is named.
  std::filesystem::create_directories(here.path("config") / "troupe");
  write_file(here.path("config") / "troupe" / "caf-node.conf", "cpus = 6\n");
  CHECK(
      contains(here.run({caf_node_program(), "--dump-config"}, {{"XDG_CONFIG_HOME", here.path("config").string()}}).out,
               "cpus = 6\n"));
  CHECK(contains(here.run({caf_node_program(), "--join", "10.0.0.1:4000"}).err, "host file"));
}
