#include "links.hpp"
#include "scratch_runs.hpp"

#include <troupe/runtime/node_host.hpp>

#include <cstdio>
#include <doctest/doctest.h>

// Hosts with certificates of a cluster, each in a network namespace and with a directory of keys of its own. The
// commands are those of docs/clusters.md.

using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;
using troupe::chaos::private_network;

const auto driver_host = troupe::runtime::local_host_name();

/// An authority, the hosts of two nodes, and the driver's.
class cluster {
 public:
  scratch_runs here;

  cluster() {
    std::string reason;
    network_ = private_network::make(2, reason);
    if (network_ == nullptr) {
      std::printf("SKIP: %s (certificates between hosts)\n", reason.c_str());
      return;
    }
    certs({"init"});
    certs({"issue", private_network::address_of(0)});
    certs({"issue", private_network::address_of(1)});
    certs({"issue", driver_host, "--role", "driver"});
    deliver(private_network::address_of(0), keys_of_node(0));
    deliver(private_network::address_of(1), keys_of_node(1));
    deliver(driver_host, keys_of_driver());
  }

  [[nodiscard]] bool is_possible() const { return network_ != nullptr; }

  /// Runs `troupe certs` where the authority is.
  std::string certs(std::vector<std::string> words) {
    words.insert(words.begin(), {troupe_program(), "certs"});
    auto ran = here.run(words, {{"TROUPE_KEYS", here.path("authority").string()}});
    INFO(ran.out << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return ran.out;
  }

  [[nodiscard]] fs::path authority() const { return here.path("authority") / "cluster"; }
  [[nodiscard]] fs::path keys_of_node(int node) const { return here.path("keys-" + std::to_string(node)); }
  [[nodiscard]] fs::path keys_of_driver() const { return here.path("keys-driver"); }

  /// Copies a host's files to it, under the name of `as`.
  void deliver(const std::string& host, const fs::path& keys, const std::string& as = {}) const {
    const auto place = keys / "cluster";
    fs::create_directories(place);
    fs::permissions(keys, fs::perms::owner_all);
    fs::permissions(place, fs::perms::owner_all);
    const auto copy = [&](const std::string& from, const std::string& to) {
      fs::copy_file(authority() / from, place / (to + ".new"), fs::copy_options::overwrite_existing);
      fs::rename(place / (to + ".new"), place / to);
    };
    const auto name = as.empty() ? host : as;
    copy(host + ".key", name + ".key");
    copy(host + ".pem", name + ".pem");
    copy("ca.pem", "ca.pem");
  }

  void deliver_revocations(const fs::path& keys) const {
    fs::copy_file(authority() / "revoked.crl", keys / "cluster" / "revoked.new");
    fs::rename(keys / "cluster" / "revoked.new", keys / "cluster" / "revoked.crl");
  }

  [[nodiscard]] running_node start_node(int node) {
    auto argv = network_->at_node(static_cast<std::size_t>(node));
    argv.insert(argv.begin(), "/usr/bin/env");
    argv.insert(argv.end(),
                {caf_node_program(), "--listen", private_network::address_of(static_cast<std::size_t>(node)) + ":0",
                 "--program-dir", here.programs()});
    return here.await_node(here.start(std::move(argv), {{"TROUPE_KEYS", keys_of_node(node).string()}}));
  }

  [[nodiscard]] child_process start_driver(std::vector<std::string> words) {
    auto argv = network_->at_driver();
    argv.insert(argv.begin(), "/usr/bin/env");
    argv.insert(argv.end(), words.begin(), words.end());
    return here.start(std::move(argv), {{"TROUPE_KEYS", keys_of_driver().string()}});
  }

  [[nodiscard]] outcome run(const std::string& name, const std::string& nodes) {
    auto driver = start_driver(here.charlm(name, {"--nodes", nodes, "--workers", "2"}));
    auto status = driver.wait();
    return {status, driver.out(), driver.err()};
  }

  /// The worker processes on a node's host.
  [[nodiscard]] std::vector<pid_t> workers_on(int node) const {
    auto result = processes_with("TROUPE_KEYS", keys_of_node(node).string());
    std::erase_if(result, [](pid_t pid) { return !environment_of(pid).contains("TROUPE_WORKER"); });
    return result;
  }

 private:
  std::unique_ptr<private_network> network_;
};

} // namespace

TEST_CASE_FIXTURE(cluster, "a run goes on without the cluster's keys, and its killed workers are replaced") {
  if (!is_possible())
    return;
  const std::vector<std::string> steps{"--steps", "3000", "--checkpoint-every", "200"};
  auto alone_words = steps;
  alone_words.insert(alone_words.end(), {"--workers", "1"});
  auto alone = here.run(here.charlm("alone", alone_words));
  INFO(alone.err);
  REQUIRE(alone.status == exit_status{0, {}});

  auto first = start_node(0);
  auto second = start_node(1);
  auto words = steps;
  // Parts of checkpoints go over streams, too.
  words.insert(words.end(), {"--nodes", first.address + "," + second.address, "--workers", "4", "--placement", "spread",
                             "--checkpoint-sync", "stream"});
  auto driver = start_driver(here.charlm("run", words));
  here.await_step(driver, "run", 100);
  // From here on nobody can read them: neither the nodes, nor the driver, nor workers that are started now.
  for (const auto& keys : {keys_of_node(0), keys_of_node(1), keys_of_driver()})
    fs::rename(keys / "cluster", keys / "gone");
  for (auto node : {0, 1}) {
    const auto before = workers_on(node);
    REQUIRE(before.size() == 2);
    send_signal(before.front(), SIGKILL);
    here.await(driver, [&] {
      const auto now = workers_on(node);
      return now.size() == 2 && std::ranges::find(now, before.front()) == now.end();
    });
    here.await_step(driver, "run", here.last_step("run") + 50);
  }
  const auto status = driver.wait();
  INFO(driver.err() << first.process.err() << second.process.err());
  REQUIRE(status == exit_status{0, {}});
  const auto result = here.result("run");
  INFO(result.dump(2));
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].size() == 2);
  CHECK(result["generations"].back()["workers"] == 4);
  CHECK(result["state_sha256"] == here.result("alone")["state_sha256"]);
  CHECK(result["state_sha256"] == stored_state(result["latest_checkpoint"].get<std::string>()));
}

TEST_CASE_FIXTURE(cluster,
                  "a host with another role, another name or a revoked certificate is refused, and both ends say why") {
  if (!is_possible())
    return;
  auto first = start_node(0);
  {
    const auto ran = run("welcome", first.address);
    INFO(ran.err << first.process.err());
    CHECK(ran.status == exit_status{0, {}});
  }
  SUBCASE("a node's certificate where a driver is started") {
    certs({"renew", driver_host, "--role", "node"});
    deliver(driver_host, keys_of_driver());
    const auto ran = run("role", first.address);
    INFO(ran.err);
    CHECK(ran.status == exit_status{1, {}});
    CHECK(contains(ran.err, "has the role node, and this program needs the role driver"));
    CHECK(contains(ran.err, "troupe certs renew " + driver_host));
  }
  SUBCASE("a node that has another host's certificate") {
    deliver(private_network::address_of(0), keys_of_node(1), private_network::address_of(1));
    auto impostor = start_node(1);
    const auto ran = run("name", impostor.address);
    INFO(ran.err << impostor.process.err());
    CHECK(ran.status == exit_status{1, {}});
    CHECK(contains(ran.err, "it is not for " + private_network::address_of(1) + ", which was dialled"));
    CHECK(contains(impostor.process.err(), "refused a connection from "));
  }
  SUBCASE("a revoked driver, which may come back with a new certificate") {
    certs({"revoke", driver_host});
    deliver_revocations(keys_of_node(0));
    auto ran = run("revoked", first.address);
    INFO(ran.err << first.process.err());
    CHECK(ran.status == exit_status{1, {}});
    CHECK(contains(ran.err, "refused our certificate (certificate revoked"));
    CHECK(contains(first.process.err(), "of " + driver_host + ", serial number"));
    CHECK(contains(first.process.err(), "certificate revoked"));
    CHECK(contains(certs({"list"}), "revoked"));
    certs({"issue", driver_host, "--role", "driver"});
    deliver(driver_host, keys_of_driver());
    deliver_revocations(keys_of_driver());
    ran = run("back", first.address);
    CHECK(ran.status == exit_status{0, {}});
  }
  SUBCASE("a revoked node") {
    certs({"revoke", private_network::address_of(0)});
    deliver_revocations(keys_of_driver());
    const auto ran = run("node", first.address);
    INFO(ran.err);
    CHECK(ran.status == exit_status{1, {}});
    CHECK(contains(ran.err, "of " + private_network::address_of(0) + ", serial number"));
    CHECK(contains(ran.err, "certificate revoked"));
  }
}

TEST_CASE_FIXTURE(cluster,
                  "a node beyond loopback starts the programs of one directory, and does not start without one") {
  if (!is_possible())
    return;
  auto ran = here.run({caf_node_program(), "--listen", "127.0.0.1:0", "--insecure"});
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "--program-dir"));
  // It does not come to the port, which this namespace does not have.
  ran = here.run({caf_node_program(), "--listen", private_network::address_of(0) + ":0"},
                 {{"TROUPE_KEYS", keys_of_node(0).string()}});
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "listens beyond loopback"));
  CHECK(contains(ran.err, "--program-dir"));
}
