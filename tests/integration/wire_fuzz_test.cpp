#include "mutated_conversation.hpp"
#include "scratch_runs.hpp"
#include "wire_peers.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <thread>
#include <tuple>
#include <utility>

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// How many damaged frames a port gets: TROUPE_WIRE_FRAMES, else 100,000 in the long form, else some seconds' worth.
std::size_t frames_wanted(std::size_t in_suite) {
  if (const auto* number = std::getenv("TROUPE_WIRE_FRAMES"))
    return std::stoul(number);
  return std::getenv("TROUPE_LONG_TESTS") != nullptr ? 100'000 : in_suite;
}

random_source seeded_source() {
  const auto* text = std::getenv("TROUPE_SEED");
  const auto seed = text != nullptr ? std::stoull(text) : std::random_device{}();
  fmt::print("TROUPE_SEED={}\n", seed);
  return random_source{seed};
}

/// Strangers may make a process grow by this, whatever they send and however long.
constexpr std::int64_t growth_limit_kib = 1024;
/// A driver keeps what its run reports meanwhile.
constexpr std::int64_t driver_growth_kib = 2048;

/// A node on which somebody's run trains: two workers that send gradients over TCP, and checkpoint parts to the driver.
class victim {
 public:
  explicit victim(std::vector<std::string> more = {}) : node_(here.start_node()), driver_(start(std::move(more))) {
    // Until all that it needs for long has been taken.
    goes_on();
    workers_ = here.workers();
  }

  [[nodiscard]] pid_t node() const { return node_.process.pid(); }
  [[nodiscard]] pid_t driver() const { return driver_.pid(); }
  [[nodiscard]] std::uint16_t node_port() const { return port_of(node_.address); }
  [[nodiscard]] const std::string& node_address() const { return node_.address; }
  [[nodiscard]] std::string node_log() const { return node_.process.err(); }

  /// Where it takes parts of checkpoints.
  [[nodiscard]] std::uint16_t part_port() const {
    std::vector<std::uint16_t> ports;
    becomes_true([&] { return !(ports = listening_ports(driver())).empty(); });
    REQUIRE(ports.size() == 1);
    return ports.front();
  }

  [[nodiscard]] troupe::runtime::tls_files peer_keys() const {
    return troupe::value_or_throw(troupe::runtime::loopback_keys(here.keys()));
  }

  void check_lives() {
    CHECK(node_.process.running());
    INFO(driver_.err());
    REQUIRE(driver_.running());
  }

  /// It goes on training, and taking checkpoints.
  void goes_on() {
    here.await_step(driver_, "victim", here.last_step("victim") + 50);
    const auto newest = [this] {
      auto all = here.checkpoints("victim");
      return all.empty() ? std::filesystem::path{} : *std::ranges::max_element(all);
    };
    const auto before = newest();
    scratch_runs::await(driver_, [&] { return newest() > before; });
  }

  /// No worker is another than at the start.
  void has_same_workers() const {
    CHECK(becomes_true([this] { return here.workers() == workers_; }));
  }

  /// Ends it, and compares its bits with those of a run that nobody has disturbed.
  nlohmann::json finish() {
    driver_.signal(SIGTERM);
    const auto status = driver_.wait();
    INFO(driver_.err());
    INFO(node_log());
    REQUIRE(status == exit_status{143, {}});
    auto result = here.result("victim");
    const auto steps = std::to_string(result["steps"].get<std::uint64_t>());
    auto undisturbed = here.start(here.charlm("undisturbed", {"--workers", "1", "--steps", steps}));
    // As many steps as there were during the attack, which may have been a long one.
    REQUIRE(undisturbed.wait(30 * hang_limit) == exit_status{0, {}});
    CHECK(result["state_sha256"] == here.result("undisturbed")["state_sha256"]);
    CHECK(here.workers_vanish());
    return result;
  }

  /// Ends a run that has lost nobody.
  void finish_undisturbed() {
    check_lives();
    has_same_workers();
    const auto result = finish();
    CHECK(result["failures"].empty());
    CHECK(result["generations"].empty());
  }

  scratch_runs here;

 private:
  child_process start(std::vector<std::string> more) {
    more.insert(more.end(), {"--nodes", node_.address, "--workers", "2", "--steps", "100000000", "--transport", "tcp",
                             "--checkpoint-sync", "stream", "--checkpoint-every", "100"});
    return here.start(here.charlm("victim", std::move(more)));
  }

  running_node node_;
  child_process driver_;
  std::vector<pid_t> workers_;
};

/// What strangers send to any port: HTTP, beginnings of TLS and of this project's own protocols, noise, all of them
/// damaged.
class stranger {
 public:
  stranger(byte_string tls_hello, byte_string basp, random_source& random)
      : random_(random), hello_(std::move(tls_hello)), basp_(std::move(basp)) {}

  byte_string next() {
    auto result = pick();
    for (auto times = random_() % 3; times > 0; --times)
      damage(result, random_);
    return result;
  }

  /// Connects, sends something, and leaves in one way or another. False if nobody listens.
  bool attack(std::uint16_t port) {
    auto socket = dial(port);
    if (!socket)
      return false;
    send_bytes(socket, next());
    switch (random_() % 4) {
    case 0:
      reset(std::move(socket));
      break;
    case 1:
      ::shutdown(socket.get(), SHUT_WR);
      [[fallthrough]];
    case 2:
      // Stays a while.
      kept_.push_back(std::move(socket));
      if (kept_.size() > 40)
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(below(random_, kept_.size())));
      break;
    default:
      break;
    }
    return true;
  }

  void leave() { kept_.clear(); }

 private:
  byte_string pick() {
    static const auto http = std::string{"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"};
    static const auto greeting = std::string{"{\"run\":\"0123456789abcdef\",\"worker\":1,\"nonce\":\"00\"}"};
    switch (random_() % 6) {
    case 0: {
      const auto bytes = std::as_bytes(std::span{http});
      return {bytes.begin(), bytes.end()};
    }
    case 1:
      return basp_;
    case 2:
      return random_bytes(random_, below(random_, 400));
    case 3: {
      // As the port for parts has its texts, were they not encrypted.
      byte_string result(4);
      write_number(result, random_() % 4 == 0 ? random_() : greeting.size());
      const auto bytes = std::as_bytes(std::span{greeting});
      result.insert(result.end(), bytes.begin(), bytes.end());
      return result;
    }
    default:
      return hello_;
    }
  }

  random_source& random_;
  byte_string hello_;
  byte_string basp_;
  std::vector<unique_fd> kept_;
};

/// What a driver says to a node, recorded where nothing is encrypted. Without a grace period, so that what opens this
/// run again leaves no workers that wait for their driver.
recorded_conversation record_driver() {
  scratch_runs here;
  const auto node = here.start_node({"--insecure", "--program-dir", here.programs()});
  const recording_proxy proxy{port_of(node.address)};
  const auto ran = here.run(here.charlm("recorded", {"--insecure", "--nodes", proxy.address(), "--driver-grace", "0"}));
  INFO(ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  return {proxy.of_dialler(), proxy.of_acceptor()};
}

/// Its memory once it no longer grows by itself, as it does while it starts.
std::int64_t settled_memory_kib(pid_t pid) {
  auto result = memory_kib(pid);
  std::ignore = becomes_true(
      [&] {
        std::this_thread::sleep_for(250ms);
        const auto next = memory_kib(pid);
        return next - std::exchange(result, next) < 64;
      },
      10s);
  return result;
}

/// Attacks until `wanted` frames were sent, and checks that a process does not grow by them. It grows a little at
/// first, while memory is taken that later connections use again, and by what it does itself meanwhile.
void check_growth(pid_t pid, std::size_t wanted, std::int64_t own_growth_kib, const std::function<void()>& attack) {
  for (std::size_t i = 0; i < wanted / 4; ++i)
    attack();
  const auto before = settled_memory_kib(pid);
  for (std::size_t i = 0; i < wanted; ++i)
    attack();
  const auto after = memory_kib(pid);
  fmt::print("{} frames: from {} to {} KiB\n", wanted, before, after);
  CHECK(after - before <= growth_limit_kib + own_growth_kib);
}

/// A thousand connections that say nothing leave no connection behind.
void check_connections(pid_t pid, std::uint16_t port) {
  const auto before = connections_of(pid);
  for (auto i = 0; i < 1000; ++i)
    CHECK(dial(port));
  CHECK(becomes_true([&] { return connections_of(pid) <= before; }));
}

/// Sends a greeting byte after byte, over connections of which each stays open, until the other end has closed all.
void check_slow_peers(const byte_string& greeting, std::uint16_t port) {
  std::vector<unique_fd> peers;
  for (auto i = 0; i < 100; ++i)
    peers.push_back(dial(port));
  std::size_t sent = 0;
  CHECK(becomes_true([&] {
    const auto next = std::span{greeting}.subspan(sent++ % greeting.size(), 1);
    std::erase_if(peers, [](const unique_fd& x) { return is_over(x); });
    // The last byte never comes, so that nothing is wrong with them but that they take their time.
    if (sent < greeting.size())
      for (const auto& x : peers)
        send_bytes(x, next);
    std::this_thread::sleep_for(20ms);
    return peers.empty();
  }));
}

} // namespace

TEST_CASE("strangers at a node's port do not disturb the run that trains there") {
  auto random = seeded_source();
  victim run;
  stranger attacker{tls_dialler{run.peer_keys()}.hello(), random_bytes(random, 64), random};
  check_connections(run.node(), run.node_port());
  const auto connections_before = connections_of(run.node());
  check_growth(run.node(), frames_wanted(3000), 0, [&] { CHECK(attacker.attack(run.node_port())); });
  run.goes_on();
  attacker.leave();
  CHECK(becomes_true([&] { return connections_of(run.node()) <= connections_before; }));
  run.finish_undisturbed();
}

TEST_CASE("a peer with keys whose conversation is damaged does not disturb another's run, and ends no node") {
  auto random = seeded_source();
  const auto conversation = record_driver();
  victim run;
  const auto peer = tls_dialler{run.peer_keys()};
  const auto connections_before = connections_of(run.node());
  const auto memory = memory_kib(run.node());
  std::size_t connections = 0;
  for (std::size_t frames = 0; frames < frames_wanted(5000); ++connections) {
    auto connection = peer.connect(run.node_port());
    REQUIRE(connection.is_open());
    auto handshake = connection.receive(basp_header_bytes);
    REQUIRE(handshake.size() == basp_header_bytes);
    const auto rest = connection.receive(payload_bytes(handshake));
    handshake.insert(handshake.end(), rest.begin(), rest.end());
    auto messages = conversation.addressed_to(node_identity::of(handshake, conversation.id_bytes()), random);
    mutate(messages, random);
    byte_string all;
    for (const auto& each : messages)
      all.insert(all.end(), each.begin(), each.end());
    connection.send(all);
    if (random() % 2 == 0)
      connection.finish();
    frames += messages.size();
    if (connections % 64 == 0)
      run.check_lives();
  }
  CHECK(becomes_true([&] { return connections_of(run.node()) <= connections_before; }));
  fmt::print("{} conversations: from {} to {} KiB\n", connections, memory, memory_kib(run.node()));
  CHECK(contains(run.node_log(), "closed the connection from 127.0.0.1: it sent"));
  run.goes_on();
  run.finish_undisturbed();
}

TEST_CASE("strangers at the driver's port for parts do not disturb its run") {
  auto random = seeded_source();
  victim run;
  stranger attacker{tls_dialler{run.peer_keys()}.hello(), random_bytes(random, 64), random};
  const auto port = run.part_port();
  check_connections(run.driver(), port);
  const auto connections_before = connections_of(run.driver());
  check_growth(run.driver(), frames_wanted(3000), driver_growth_kib, [&] { CHECK(attacker.attack(port)); });
  run.goes_on();
  attacker.leave();
  CHECK(becomes_true([&] { return connections_of(run.driver()) <= connections_before; }));
  run.finish_undisturbed();
}

TEST_CASE("peers that send a byte at a time are closed, and keep nobody out") {
  victim run;
  const auto hello = tls_dialler{run.peer_keys()}.hello();
  auto at_node = std::thread{[&] { check_slow_peers(hello, run.node_port()); }};
  auto at_driver = std::thread{[&, port = run.part_port()] { check_slow_peers(hello, port); }};
  // Its workers connect to the node, and its checkpoints to its own driver.
  const auto ran =
      run.here.run(run.here.charlm("other", {"--nodes", run.node_address(), "--checkpoint-sync", "stream"}));
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
  run.goes_on();
  at_node.join();
  at_driver.join();
  run.finish_undisturbed();
}

TEST_CASE("strangers at workers' data ports admit nobody to a group that forms") {
  auto random = seeded_source();
  victim run;
  stranger attacker{tls_dialler{run.peer_keys()}.hello(), random_bytes(random, 64), random};
  const auto survivor = run.here.worker_of_rank(0);
  auto lost = run.here.worker_of_rank(1);
  std::size_t frames = 0;
  std::size_t losses = 0;
  std::int64_t memory = 0;
  while (frames < frames_wanted(1000)) {
    REQUIRE(losses < 20 + frames_wanted(1000) / 200);
    // A loss makes the others form a group again. Whoever listens waits for its peer as long as that is stopped, which
    // is shorter than what counts as a failure.
    send_signal(lost, SIGKILL);
    ++losses;
    auto replacement = pid_t{0};
    const auto has_replacement = [&] {
      for (const auto pid : run.here.workers())
        if (pid != survivor && pid != lost)
          replacement = pid;
      return replacement != 0;
    };
    REQUIRE(becomes_true(has_replacement));
    // Its peer runs a little at a time, so that it seldom connects between two looks: a group forms within
    // milliseconds.
    std::vector<std::uint16_t> ports;
    const auto end = std::chrono::steady_clock::now() + 3s;
    while (std::chrono::steady_clock::now() < end) {
      send_signal(replacement, SIGSTOP);
      ports = listening_ports(survivor);
      if (!ports.empty())
        break;
      send_signal(replacement, SIGCONT);
      std::this_thread::sleep_for(1ms);
    }
    // It may have been too quick all the same.
    if (!ports.empty()) {
      // Also if the attacker's connection waits: the survivor takes none in before it has its peer's address.
      auto release = std::thread{[replacement] {
        std::this_thread::sleep_for(600ms);
        send_signal(replacement, SIGCONT);
      }};
      const auto until = std::chrono::steady_clock::now() + 600ms;
      while (std::chrono::steady_clock::now() < until && attacker.attack(ports.front()))
        ++frames;
      release.join();
      attacker.leave();
    }
    run.goes_on();
    lost = replacement;
    if (losses == 1)
      memory = memory_kib(survivor);
  }
  fmt::print("{} frames while {} groups formed: from {} to {} KiB\n", frames, losses, memory, memory_kib(survivor));
  const auto result = run.finish();
  INFO(result["failures"].dump(1));
  CHECK(result["failures"].size() == losses);
  for (const auto& each : result["failures"])
    CHECK(contains(each["message"], "signal 9"));
}
