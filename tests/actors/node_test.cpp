#include "actor_fixture.hpp"

#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/collectives.hpp>
#include <troupe/actors/decisions/refusal_log.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <future>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <tuple>
#include <unistd.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto run = run_id{"0123"};
const auto secret = std::string(64, 's');

/// Hears what the node and its workers tell the driver.
class fake_driver : public run_control::base {
 public:
  struct heard {
    record<worker_ended> ended;
    record<worker_output> output;
    record<node_beat> beats;
    record<node_leaving> leaving;
    record<node_drained> drained;
    record<node_resumed> resumed;
    record<run_superseded> superseded;
  };

  fake_driver(caf::actor_config& cfg, std::shared_ptr<heard> all) : run_control::base(cfg), all_(std::move(all)) {}

  behavior_type make_behavior() override {
    return {
        [](const worker_ready&, const worker_actor&) {},
        [](const run_plan& plan) { return plan_accepted{plan.generation}; },
        [](const regroup_report&) { return next_generation{}; },
        [](const caught_up&) {},
        [](const metrics_batch&) {},
        [](const worker_finished&) {},
        [this](const worker_ended& message) { all_->ended.add(message); },
        [this](const worker_output& message) { all_->output.add(message); },
        [this](const node_beat& message) { all_->beats.add(message); },
        [this](const node_leaving& message) { all_->leaving.add(message); },
        [this](const node_drained& message) { all_->drained.add(message); },
        [this](const node_resumed& message) { all_->resumed.add(message); },
        [this](const run_superseded& message) { all_->superseded.add(message); },
    };
  }

 private:
  std::shared_ptr<heard> all_;
};

/// A node whose processes are fake, and the driver of one run.
class host : public actor_fixture {
 public:
  host() {
    processes = std::make_shared<fake_node_processes>(system(), worker_script::silent);
    node =
        spawn_node(system(), {"host-a", "10.0.0.7", {16, 2}, [log = log](const std::string& line) { log->add(line); }},
                   processes->factory());
    processes->set_node(node);
    heard = std::make_shared<fake_driver::heard>();
    driver = system().spawn<fake_driver>(heard);
    collectives = spawn_collectives(system());
    store = spawn_checkpoint_store(system(), {run, "unused", {1}, {}});
  }
  ~host() {
    for (const auto& each :
         std::vector<caf::actor>{caf::actor_cast<caf::actor>(driver), caf::actor_cast<caf::actor>(node),
                                 caf::actor_cast<caf::actor>(collectives), caf::actor_cast<caf::actor>(store)})
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  expected<run_opened> open(const run_id& id = run) {
    return ask<run_opened>(node,
                           open_run{id, "digits", "/opt/train", "c0ffee", secret, timeout_ms, grace_ms, predecessor},
                           driver, collectives, store);
  }

  expected<workers_started> start(std::initializer_list<std::uint32_t> workers, const run_id& id = run) {
    start_workers message{id, {"--fast"}, {}, secret};
    for (auto worker : workers)
      message.workers.push_back({{worker}, {{"RANK", std::to_string(worker)}}});
    return ask<workers_started>(node, message);
  }

  expected<void> end(const run_id& id = run) { return ask<void>(node, end_run{id, secret}); }

  /// A worker's way in: what the node makes of `with` as the secret.
  errc join(std::uint32_t worker, const std::string& with) {
    auto challenge = ask<join_challenge>(node, join_request{run, {worker}, "nonce"});
    if (!challenge)
      return challenge.error().code;
    CHECK(verify_node(secret, {run, {worker}, "nonce"}, *challenge));
    return prove({run, {worker}, make_proof(with, join_role::worker, run, {worker}, challenge->nonce)});
  }

  errc prove(const join_proof& proof) {
    auto result = errc::none;
    self()
        ->request(node, patience, proof, follower)
        .receive(
            [&](const run_control& a, const collectives_actor& b, const checkpoint_store& c) {
              CHECK(a == driver);
              CHECK(b == collectives);
              CHECK(c == store);
            },
            [&](const caf::error& reason) { result = from_caf(reason).code; });
    return result;
  }

  /// What a node sees when the driver's network is gone.
  void lose_connection() {
    caf::anon_send_exit(driver, caf::exit_reason::remote_link_unreachable);
    CHECK(has_ended(driver));
  }

  void connect_another_driver() {
    heard = std::make_shared<fake_driver::heard>();
    driver = system().spawn<fake_driver>(heard);
  }

  expected<run_claimed> adopt(const std::string& with, const run_claim& claim = {}) {
    return ask<run_claimed>(node, adopt_run{run, with, claim}, driver, collectives, store);
  }

  [[nodiscard]] bool lives(std::uint32_t worker) {
    auto living = processes->living();
    return std::ranges::find(living, worker_id{worker}) != living.end();
  }

  std::shared_ptr<record<std::string>> log = std::make_shared<record<std::string>>();
  std::shared_ptr<fake_node_processes> processes;
  std::shared_ptr<fake_driver::heard> heard;
  /// How long a worker may say nothing.
  std::uint64_t timeout_ms = 600'000;
  std::optional<run_proof> predecessor;
  /// How long the run lives on without its driver.
  std::uint64_t grace_ms = 600'000;
  /// The part of a worker that has to know the driver.
  driver_follower follower;
  node_actor node;
  run_control driver;
  collectives_actor collectives;
  checkpoint_store store;
};

} // namespace

TEST_CASE_FIXTURE(host, "a node says what it has") {
  auto offer = ask<node_offer>(node, offer_request{run});
  REQUIRE(offer);
  CHECK(offer->host == "host-a");
  CHECK(offer->address == "10.0.0.7");
  CHECK(offer->free == resources{16, 2});
  CHECK(offer->pid == static_cast<std::uint32_t>(::getpid()));
}

TEST_CASE_FIXTURE(host, "a driver that speaks another version of the protocol is refused, with both versions") {
  auto offer = ask<node_offer>(node, offer_request{run, protocol_version + 1});
  REQUIRE_FALSE(offer);
  CHECK(offer.error().code == errc::unsupported_version);
  const auto both =
      fmt::format("version {} of the protocol, the driver version {}", protocol_version, protocol_version + 1);
  CHECK(offer.error().message.find(both) != std::string::npos);
}

TEST_CASE_FIXTURE(host, "what a run has leased is offered to no other until the run ends here") {
  const auto other = run_id{"4567"};
  auto offered = [this](const run_id& id) { return value_or_throw(ask<node_offer>(node, offer_request{id})); };
  REQUIRE(ask<void>(node, lease_request{{1, run}, "digits", {12, 1}, {}}));
  CHECK(offered(other).free == resources{4, 1});
  CHECK(offered(other).capacity == resources{16, 2});
  CHECK(offered(other).holders == "run digits has 12 CPUs and 1 GPU");
  CHECK(offered(run).free == resources{16, 2});
  const auto refused = ask<void>(node, lease_request{{2, other}, "words", {5, 0}, {}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::busy);
  REQUIRE(open());
  SUBCASE("workers beyond the lease need what is left") {
    REQUIRE(open(other));
    auto five = start_workers{other, {}, {{{7}, {}, 0}}, secret};
    five.each = {5, 0};
    CHECK(ask<workers_started>(node, five).error().code == errc::busy);
    five.each = {4, 0};
    CHECK(ask<workers_started>(node, five));
    CHECK(offered(run_id{"89"}).free == resources{0, 1});
    processes->end({7}, 0, "exit code 0");
    heard->ended.wait_for(1);
    CHECK(offered(run_id{"89"}).free == resources{4, 1});
  }
  SUBCASE("and a run that waits goes first") {
    const auto words = waiting_run{{2, other}, "words", {5, 0}};
    CHECK(value_or_throw(ask<node_offer>(node, offer_request{other, protocol_version, {}, words})).free ==
          resources{4, 1});
    CHECK(offered(run_id{"89"}).free == resources{0, 1});
  }
  REQUIRE(end());
  CHECK(offered(other).free == resources{16, 2});
}

TEST_CASE_FIXTURE(host, "a run that was begun anew gets the lease of the one before, whose driver is gone") {
  const auto next = run_id{"4567"};
  REQUIRE(ask<void>(node, lease_request{{1, run}, "digits", {16, 0}, {}}));
  REQUIRE(open());
  lose_connection();
  const auto proof = run_proof{run, secret};
  auto offered = [&] { return ask<node_offer>(node, offer_request{next, protocol_version, proof})->free.cpus; };
  // The node hears of the driver's end when the test does, or just after it.
  for (const auto deadline = std::chrono::steady_clock::now() + patience;
       offered() == 0 && std::chrono::steady_clock::now() < deadline;)
    std::this_thread::yield();
  CHECK(offered() == 16);
  CHECK(ask<void>(node, lease_request{{2, next}, "digits", {16, 0}, {}}).error().code == errc::busy);
  CHECK(ask<void>(node, lease_request{{2, next}, "digits", {16, 0}, proof}));
}

TEST_CASE_FIXTURE(host, "workers get GPUs that are free, and a run is offered those that no other has") {
  const auto other = run_id{"4567"};
  auto offered = [this](const run_id& id) { return ask<node_offer>(node, offer_request{id})->free.gpus; };
  auto launch = [this](const run_id& id, std::uint32_t worker, double gpus) {
    return ask<workers_started>(node, start_workers{id, {}, {{{worker}, {}, gpus}}, secret});
  };
  REQUIRE(open());
  REQUIRE(open(other));
  REQUIRE(launch(run, 0, 0.5));
  REQUIRE(launch(run, 1, 0.5));
  REQUIRE(launch(run, 2, 0));
  CHECK(processes->started.all()[0].devices == std::vector<std::string>{"0"});
  CHECK(processes->started.all()[1].devices == std::vector<std::string>{"1"});
  CHECK(processes->started.all()[2].devices.empty());
  CHECK(offered(run) == 2);
  CHECK(offered(other) == 0);
  auto refused = launch(other, 10, 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::unsatisfiable);
  CHECK(refused.error().message.find("1: worker 1 of another run") != std::string::npos);
  // Who ends makes capacity, and a replacement gets what it had.
  processes->end({1}, 0, "exit code 0");
  heard->ended.wait_for(1);
  CHECK(offered(other) == 1);
  REQUIRE(launch(other, 10, 1));
  CHECK(processes->started.all()[3].devices == std::vector<std::string>{"1"});
  REQUIRE(launch(run, 3, 0.5));
  CHECK(processes->started.all()[4].devices == std::vector<std::string>{"0"});
}

TEST_CASE_FIXTURE(host, "a node refuses absurd numbers of GPUs, and lives") {
  REQUIRE(open());
  auto message = start_workers{run, {}, {{{0}, {}, 0}}, secret};
  for (const auto gpus : {-1.0, 1e-300, 0.001, 1.5, 1e300, std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN()}) {
    INFO(gpus);
    message.each.gpus = gpus;
    CHECK(ask<workers_started>(node, message).error().code == errc::invalid_argument);
    message.each.gpus = 0;
    message.workers[0].gpus = gpus;
    CHECK(ask<workers_started>(node, message).error().code == errc::invalid_argument);
    message.workers[0].gpus = 0;
  }
  CHECK(ask<void>(node, lease_request{{1, run}, "digits", {1, -1}, {}}).error().code == errc::invalid_argument);
  CHECK(ask<workers_started>(node, message));
}

TEST_CASE_FIXTURE(host, "a run is opened once, and says where its program is") {
  CHECK(open().value() == run_opened{run, "/there/opt/train"});
  CHECK(open().value() == run_opened{run, "/there/opt/train"});
  CHECK(processes->opened.all().size() == 1);
}

TEST_CASE_FIXTURE(host, "a program that cannot be opened is told, and opens no run") {
  processes->open_error = {errc::program_mismatch, "another build"};
  CHECK(open().error() == processes->open_error);
  CHECK(start({0}).error().code == errc::stale_generation);
}

TEST_CASE_FIXTURE(host, "processes are started with what was said of them") {
  REQUIRE(open());
  CHECK(start({3, 5}).value() == workers_started{run, {1003, 1005}});
  auto started = processes->started.all();
  REQUIRE(started.size() == 2);
  CHECK(started[1].run == run);
  CHECK(started[1].worker.value == 5);
  CHECK(started[1].secret == secret);
  CHECK(started[1].arguments == std::vector<std::string>{"--fast"});
  CHECK(started[1].environment == std::map<std::string, std::string>{{"RANK", "5"}});
}

TEST_CASE_FIXTURE(host, "a worker is started once") {
  REQUIRE(open());
  REQUIRE(start({0}));
  CHECK(start({0}).error().code == errc::already_exists);
  CHECK(start({1, 1}).error().code == errc::already_exists);
  CHECK(start({1}));
  CHECK(processes->started.all().size() == 2);
}

TEST_CASE_FIXTURE(host, "a process that cannot be started is told") {
  REQUIRE(open());
  processes->start_error = {errc::io_error, "too many processes"};
  CHECK(start({0}).error() == processes->start_error);
}

TEST_CASE_FIXTURE(host, "a run that was not opened has no workers here, and its end is no trouble") {
  CHECK(start({0}).error().code == errc::stale_generation);
  CHECK(ask<join_challenge>(node, join_request{run, {0}, "n"}).error().code == errc::stale_generation);
  CHECK(prove({run, {0}, "proof"}) == errc::stale_generation);
  CHECK(end());
}

TEST_CASE_FIXTURE(host, "who knows the secret gets the handles, and nobody else") {
  REQUIRE(open());
  REQUIRE(start({0}));
  CHECK(join(0, secret) == errc::none);
  CHECK(join(0, "not the secret") == errc::wrong_secret);
  CHECK(join(1, secret) == errc::stale_generation);
  CHECK(prove({run, {0}, make_proof(secret, join_role::worker, run, {0}, "")}) == errc::wrong_secret);
}

TEST_CASE_FIXTURE(host, "output and ends are passed on to the driver") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  auto output = worker_output{run, {1}, 0, {"a line"}};
  processes->write(output);
  output.number = 1;
  CHECK(heard->output.wait_for(1) == std::vector{output});
  processes->end({1}, 3, "exit code 3", {"last"});
  CHECK(heard->ended.wait_for(1) == std::vector{worker_ended{run, {1}, 3, "exit code 3", {"last"}}});
  CHECK(end());
  CHECK(heard->ended.wait_for(2).size() == 2);
}

TEST_CASE_FIXTURE(host, "the end of a run is answered when nothing is left of it, to everybody who asks") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  CHECK(end());
  CHECK(processes->living().empty());
  CHECK(processes->closed.all() == std::vector{run});
  CHECK(end());
  CHECK(processes->closed.all().size() == 1);
  CHECK(start({2}).error().code == errc::stale_generation);
  CHECK(join(0, secret) == errc::stale_generation);
}

TEST_CASE_FIXTURE(host, "the end of a run is answered after its last lines, also if all its workers had ended before") {
  REQUIRE(open());
  // More than one message takes.
  const auto lines = worker_output{run, {1}, 0, std::vector<std::string>(100, std::string(4096, '.'))};
  REQUIRE(start({0}));
  processes->write(lines);
  processes->end({0}, 0, "exit code 0", {});
  CHECK(heard->ended.wait_for(1).size() == 1);
  REQUIRE(start({1}));
  processes->write(lines);
  CHECK(end());
  std::size_t count = 0;
  for (const auto& each : heard->output.all())
    count += each.lines.size();
  CHECK(count == 200);
  CHECK(heard->output.all().size() > 4);
}

TEST_CASE_FIXTURE(host, "the end of one run leaves the others alone") {
  auto other = run_id{"4567"};
  REQUIRE(open());
  REQUIRE(open(other));
  REQUIRE(start({0}));
  CHECK(end(other));
  CHECK(processes->closed.all() == std::vector{other});
  CHECK(ask<join_challenge>(node, join_request{run, {0}, "n"}));
}

TEST_CASE_FIXTURE(host, "when the driver is gone its workers are killed and the run is forgotten") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  caf::anon_send_exit(driver, caf::exit_reason::kill);
  CHECK(processes->closed.wait_for(1) == std::vector{run});
  CHECK(processes->killed.all() == std::vector{run});
  CHECK(processes->living().empty());
  CHECK(start({2}).error().code == errc::stale_generation);
}

// -- a lost connection --------------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(host, "workers live on without a connection to the driver, and are told of it when it is back") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  auto told = std::make_shared<record<run_control>>();
  follower = system().spawn([told](driver_follower::pointer) -> driver_follower::behavior_type {
    return {
        [told](const run_control& control, const collectives_actor&, const checkpoint_store&) { told->add(control); }};
  });
  REQUIRE(join(1, secret) == errc::none);
  lose_connection();
  // Nobody hears of this one yet.
  processes->end({0}, 3, "exit code 3", {"last"});
  auto beat = worker_beat{run, {1}, {7}, {41}, 5, activity_kind::collective};
  CHECK(ask<void>(node, beat));
  connect_another_driver();
  CHECK(adopt(std::string(64, 'x')).error().code == errc::wrong_secret);
  CHECK(told->all().empty());
  CHECK(adopt(secret)->workers.size() == 1);
  CHECK(told->wait_for(1) == std::vector{driver});
  CHECK(heard->ended.wait_for(1) == std::vector{worker_ended{run, {0}, 3, "exit code 3", {"last"}}});
  CHECK(heard->beats.wait_until_any([&](const node_beat& x) { return x.workers == std::vector{beat}; }));
  CHECK(lives(1));
  // A worker that joins later hears of the right one.
  REQUIRE(start({2}));
  CHECK(join(2, secret) == errc::none);
  CHECK(end());
}

TEST_CASE_FIXTURE(host, "the driver with the greatest claim has the run, and the one before is told and not obeyed") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  const auto before = heard;
  const auto greater = run_claim{2, "b"};
  CHECK(ask<run_claimed>(node, claim_run{run, std::string(64, 'x'), greater}).error().code == errc::wrong_secret);
  CHECK(before->superseded.all().empty());
  const auto claimed = ask<run_claimed>(node, claim_run{run, secret, greater});
  REQUIRE(claimed);
  CHECK(claimed->workers.size() == 2);
  CHECK(before->superseded.wait_for(1) == std::vector{run_superseded{run}});
  // The driver before, and one that claims at the same time with a smaller tag.
  CHECK(adopt(secret).error().code == errc::superseded);
  CHECK(adopt(secret, {2, "a"}).error().code == errc::superseded);
  CHECK(open().error().code == errc::superseded);
  CHECK(start({2}).error().code == errc::superseded);
  CHECK(end().error().code == errc::superseded);
  CHECK(ask<void>(node, kill_worker{run, {0}, "says the driver before", secret}).error().code == errc::superseded);
  CHECK(lives(0));
  // What happens meanwhile is told when the new one connects, and not to the one before, however long it lives.
  processes->end({1}, 3, "exit code 3", {});
  REQUIRE(log->wait_until_any([](const std::string& line) {
    return line.find("worker 1 of run") == 0 && line.find("ended") != std::string::npos;
  }));
  CHECK(before->ended.all().empty());
  connect_another_driver();
  REQUIRE(adopt(secret, greater));
  CHECK(heard->ended.wait_for(1).front().worker == worker_id{1});
  CHECK(ask<void>(node, kill_worker{run, {0}, "says the new one", secret, greater}));
  CHECK_FALSE(lives(0));
  CHECK(ask<void>(node, end_run{run, secret, greater}));
}

TEST_CASE_FIXTURE(host, "nobody commands a run without its secret, and each attempt is logged") {
  REQUIRE(open());
  REQUIRE(start({0}));
  const auto other = std::string(64, 'x');
  for (const auto& known : {other, std::string{}}) {
    CHECK(ask<workers_started>(node, start_workers{run, {}, {{{1}, {}, 0}}, known}).error().code == errc::wrong_secret);
    CHECK(ask<void>(node, kill_worker{run, {0}, "says a stranger", known}).error().code == errc::wrong_secret);
    CHECK(ask<void>(node, end_run{run, known}).error().code == errc::wrong_secret);
    CHECK(ask<run_claimed>(node, claim_run{run, known, {9, "z"}}).error().code == errc::wrong_secret);
    CHECK(adopt(known, {9, "z"}).error().code == errc::wrong_secret);
    const auto again = open_run{run, "digits", "/opt/train", "c0ffee", known, timeout_ms, grace_ms, {}, {9, "z"}};
    CHECK(ask<run_opened>(node, again, driver, collectives, store).error().code == errc::wrong_secret);
  }
  CHECK(heard->superseded.all().empty());
  CHECK(processes->started.all().size() == 1);
  CHECK(processes->killed_one.all().empty());
  CHECK(lives(0));
  const auto lines = log->all();
  for (const auto* command : {"start_workers", "kill_worker", "end_run", "claim_run", "adopt_run", "open_run"}) {
    const auto line =
        fmt::format("refused {} for run digits (0123): its sender does not know the run's secret", command);
    CHECK_MESSAGE(std::ranges::count(lines, line) == 2, line);
  }
  // Not even whether a run ends may be found out or brought about by asking often.
  for (auto i = 0; i < 100; ++i)
    std::ignore = ask<void>(node, end_run{run, other});
  CHECK(log->all().size() <= lines.size() + refusal_log::lines_per_minute);
  CHECK(lives(0));
}

TEST_CASE_FIXTURE(host, "processes of a group wait for its runs as long as its keeper lives, and give way to other "
                        "runs") {
  auto told = std::make_shared<record<processes_ended>>();
  const auto make_keeper = [&] {
    return system().spawn([told](process_keeper::pointer) -> process_keeper::behavior_type {
      return {[told](const processes_ended& event) { told->add(event); }};
    });
  };
  auto keeper = make_keeper();
  const auto keep = [&](const std::string& with) {
    return ask<void>(node, keep_processes{run, "group", with}, keeper);
  };
  CHECK(keep(secret).error().code == errc::stale_generation);
  REQUIRE(open());
  CHECK(keep("another").error().code == errc::wrong_secret);
  REQUIRE(start({0}));
  CHECK(processes->started.all().back().group.empty());
  REQUIRE(keep(secret));
  REQUIRE(keep(secret));
  REQUIRE(start({1}));
  CHECK(processes->started.all().back().group == "group");

  // Those of the group itself stay.
  processes->set_waiting("group", 3);
  REQUIRE(start({2}));
  CHECK(told->all().empty());
  const auto other = run_id{"4567"};
  REQUIRE(open(other));
  REQUIRE(start({3}, other));
  CHECK(processes->started.all().back().group.empty());
  REQUIRE(told->wait_for(1).size() == 1);
  CHECK(told->all()[0] == processes_ended{"10.0.0.7", 3, "digits"});

  caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
  REQUIRE(processes->ended_groups.wait_for(1).size() == 1);
  CHECK(processes->ended_groups.all()[0] == "group");
  REQUIRE(start({4}));
  CHECK(processes->started.all().back().group.empty());

  // A node that is drained keeps none either.
  keeper = make_keeper();
  REQUIRE(keep(secret));
  REQUIRE(ask<node_report>(node, drain_node{}));
  CHECK(processes->ended_groups.wait_for(2).size() == 2);
  caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
}

TEST_CASE_FIXTURE(host, "a driver sets torchrun's variables for its workers, and no others") {
  REQUIRE(open());
  for (const auto* name : {"LD_PRELOAD", "PATH", "TROUPE_KEYS", ""}) {
    start_workers message{run, {}, {{{0}, {{"RANK", "0"}, {name, "x"}}, 1}}, secret};
    CHECK(ask<workers_started>(node, message).error().code == errc::invalid_argument);
  }
  CHECK(processes->started.all().empty());
  CHECK(ask<node_offer>(node, offer_request{run_id{"4567"}})->free.gpus == 2);
}

TEST_CASE_FIXTURE(host, "a claim that nobody follows up ends with the grace period") {
  grace_ms = 300;
  REQUIRE(open());
  REQUIRE(start({0}));
  REQUIRE(ask<run_claimed>(node, claim_run{run, secret, {2, "b"}}));
  CHECK(processes->closed.wait_for(1) == std::vector{run});
  CHECK_FALSE(lives(0));
}

TEST_CASE_FIXTURE(host, "a driver can connect again before its node has noticed anything") {
  REQUIRE(open());
  REQUIRE(start({0}));
  auto before = driver;
  connect_another_driver();
  REQUIRE(adopt(secret));
  // The end of the connection before is no news.
  caf::anon_send_exit(before, caf::exit_reason::remote_link_unreachable);
  CHECK(has_ended(before));
  CHECK(heard->beats.wait_for(heard->beats.all().size() + 2).size() >= 2);
  CHECK(lives(0));
}

TEST_CASE_FIXTURE(host, "workers whose driver does not come back end after the grace period") {
  grace_ms = 300;
  REQUIRE(open());
  REQUIRE(start({0}));
  lose_connection();
  CHECK(lives(0));
  CHECK(processes->closed.wait_for(1) == std::vector{run});
  CHECK_FALSE(lives(0));
  connect_another_driver();
  CHECK(adopt(secret).error().code == errc::stale_generation);
}

TEST_CASE_FIXTURE(host, "the grace period of a run that has ended does not end the same run when it is opened again") {
  grace_ms = 300;
  REQUIRE(open());
  lose_connection();
  const auto grace_ends = std::chrono::steady_clock::now() + 300ms;
  REQUIRE(end());
  connect_another_driver();
  grace_ms = 600'000;
  REQUIRE(open());
  REQUIRE(start({0}));
  lose_connection();
  std::this_thread::sleep_until(grace_ends + 200ms);
  connect_another_driver();
  CHECK(adopt(secret)->workers.size() == 1);
  CHECK(lives(0));
}

TEST_CASE_FIXTURE(host, "a driver that is started anew in the directory of one that is gone finds its workers ended") {
  const auto next = run_id{"4567"};
  REQUIRE(open());
  REQUIRE(ask<workers_started>(node, start_workers{run, {}, {{{0}, {}, 2}}, secret}));
  lose_connection();
  const auto offered = [&](const std::optional<run_proof>& proof) {
    return ask<node_offer>(node, offer_request{next, protocol_version, proof})->free.gpus;
  };
  CHECK(offered(run_proof{run_id{"4567"}, secret}) == 0);
  CHECK(offered(run_proof{run, std::string(64, 'x')}) == 0);
  CHECK(offered(std::nullopt) == 0);
  CHECK(offered(run_proof{run, secret}) == 2);
  CHECK(lives(0));
  connect_another_driver();
  for (const auto& wrong : {run_proof{run_id{"4567"}, secret}, run_proof{run, std::string(64, 'x')}}) {
    predecessor = wrong;
    CHECK(open(run_id{"89ab" + wrong.run.value + wrong.secret.substr(0, 1)}));
    CHECK(lives(0));
  }
  predecessor = run_proof{run, secret};
  CHECK(open(next));
  CHECK_FALSE(lives(0));
  CHECK(processes->closed.all() == std::vector{run});
  CHECK(ask<workers_started>(node, start_workers{next, {}, {{{0}, {}, 2}}, secret}));
}

TEST_CASE_FIXTURE(host, "without a grace period workers end with the connection to their driver") {
  grace_ms = 0;
  REQUIRE(open());
  REQUIRE(start({0}));
  lose_connection();
  CHECK(processes->closed.wait_for(1) == std::vector{run});
  CHECK_FALSE(lives(0));
}

TEST_CASE_FIXTURE(host, "a driver that is gone before its run is opened leaves nothing behind") {
  caf::anon_send_exit(driver, caf::exit_reason::kill);
  CHECK(has_ended(driver));
  CHECK(open());
  CHECK(processes->closed.wait_for(1) == std::vector{run});
}

TEST_CASE_FIXTURE(host, "when a node ends, its processes end") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  caf::anon_send_exit(node, caf::exit_reason::user_shutdown);
  CHECK(has_ended(node));
  processes->set_node(node_actor{});
  CHECK(processes->living().empty());
}

// -- who lives ------------------------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(host, "a node tells its driver that it lives, and once what each worker has told") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  REQUIRE(heard->beats.wait_for(1).size() >= 1);
  CHECK(heard->beats.all()[0] == node_beat{run, {}});
  auto beat = worker_beat{run, {1}, {7}, {41}, 5, activity_kind::collective};
  CHECK(ask<void>(node, beat));
  // What was said before is of no interest any more.
  beat.progress = 6;
  CHECK(ask<void>(node, beat));
  // Nobody here has started these.
  CHECK(ask<void>(node, worker_beat{run, {9}, {7}, {41}, 5, activity_kind::collective}));
  CHECK(ask<void>(node, worker_beat{run_id{"4567"}, {1}, {7}, {41}, 5, activity_kind::collective}));
  CHECK(heard->beats.wait_until_any([](const node_beat& x) { return !x.workers.empty(); }));
  heard->beats.wait_for(heard->beats.all().size() + 2);
  std::vector<worker_beat> told;
  for (const auto& each : heard->beats.all())
    told.insert(told.end(), each.workers.begin(), each.workers.end());
  CHECK(told == std::vector{beat});
}

TEST_CASE_FIXTURE(host, "a node without runs tells nobody anything, and begins again with the next one") {
  REQUIRE(open());
  heard->beats.wait_for(1);
  REQUIRE(end());
  auto before = heard->beats.all().size();
  auto other = run_id{"4567"};
  REQUIRE(open(other));
  CHECK(heard->beats.wait_until_any([&](const node_beat& x) { return x.run == other; }));
  auto all = heard->beats.all();
  CHECK(std::ranges::count_if(all, [](const node_beat& x) { return x.run == run; }) ==
        static_cast<std::ptrdiff_t>(before));
}

TEST_CASE_FIXTURE(host, "the driver hears of a worker that is stopped, and decides; one that beats is not silent") {
  timeout_ms = 600;
  processes->set_script({0}, worker_script::until_stopped);
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  REQUIRE(join(1, secret) == errc::none);
  processes->show({1}, 'T');
  const auto silent = std::vector<silent_worker>{{{1}, "its process is stopped (SIGSTOP)"}};
  CHECK(heard->beats.wait_until_any([&](const node_beat& x) { return x.silent == silent; }));
  CHECK(processes->killed_one.all().empty());
  // It goes on.
  worker_beat beat;
  beat.run = run;
  beat.worker = {1};
  caf::anon_send(node, beat);
  CHECK(heard->beats.wait_until_any(
      [&](const node_beat& x) { return x.silent.empty() && std::ranges::find(x.workers, beat) != x.workers.end(); }));
  CHECK(ask<void>(node, kill_worker{run, {1}, "its process is stopped", secret}));
  auto ended = heard->ended.wait_for(1);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0] == worker_ended{run, {1}, 137, "its process is stopped; killed by signal 9 (SIGKILL)", {}});
  CHECK(lives(0));
}

TEST_CASE_FIXTURE(
    host, "a worker that sleeps and says nothing is silent, too, and workers that are silent are told at once") {
  timeout_ms = 600;
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  REQUIRE(join(0, secret) == errc::none);
  REQUIRE(join(1, secret) == errc::none);
  const auto why = std::string{"its process sleeps and does not answer"};
  CHECK(heard->beats.wait_until_any([&](const node_beat& x) { return !x.silent.empty(); }));
  const auto all = heard->beats.all();
  const auto first = std::ranges::find_if(all, [](const node_beat& x) { return !x.silent.empty(); });
  CHECK(first->silent == std::vector<silent_worker>{{{0}, why}, {{1}, why}});
}

TEST_CASE_FIXTURE(host,
                  "a process that the kernel does not end is reported as lost, keeps its GPU and holds up nobody") {
  REQUIRE(open());
  processes->cannot_be_killed({1});
  processes->show({1}, 'D');
  start_workers message{run, {}, {{{0}, {}, 1}, {{1}, {}, 1}}, secret};
  REQUIRE(ask<workers_started>(node, message));
  CHECK(ask<void>(node, kill_worker{run, {1}, "it is silent", secret}));
  const auto ended = heard->ended.wait_for(1);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].worker == worker_id{1});
  CHECK(ended[0].exit_status == 137);
  CHECK(ended[0].description == "it is silent; it was killed, and is not dead: uninterruptible sleep");
  const run_id next{"89ab"};
  CHECK(ask<node_offer>(node, offer_request{next})->free.gpus == 0);
  // Nobody waits for it.
  CHECK(end());
  CHECK(ask<node_offer>(node, offer_request{next})->free.gpus == 1);
  processes->end({1}, 137, "killed by signal 9 (SIGKILL)");
  CHECK(ask<node_offer>(node, offer_request{next})->free.gpus == 2);
}

TEST_CASE_FIXTURE(host, "a worker that gets no processor is spared, and sampled again") {
  timeout_ms = 600;
  REQUIRE(open());
  REQUIRE(start({0}));
  processes->show({0}, 'R');
  REQUIRE(join(0, secret) == errc::none);
  // One look when it is overdue, and one at each interval after it is silent.
  CHECK(processes->sampled.wait_for(4).size() >= 4);
  CHECK(lives(0));
  CHECK(processes->killed_one.all().empty());
  processes->show({0}, 'T');
  CHECK(heard->beats.wait_until_any([](const node_beat& x) { return !x.silent.empty(); }));
}

TEST_CASE_FIXTURE(host, "a silent worker is spared while the node itself gets no processor") {
  timeout_ms = 600;
  processes->is_node_starved = true;
  REQUIRE(open());
  REQUIRE(start({0}));
  REQUIRE(join(0, secret) == errc::none);
  CHECK(processes->sampled.wait_for(4).size() >= 4);
  CHECK(lives(0));
  processes->is_node_starved = false;
  CHECK(heard->beats.wait_until_any([](const node_beat& x) { return !x.silent.empty(); }));
}

TEST_CASE_FIXTURE(host, "a process that has not joined is not sampled") {
  timeout_ms = 600;
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  REQUIRE(join(1, secret) == errc::none);
  CHECK(heard->beats.wait_until_any([](const node_beat& x) { return !x.silent.empty(); }));
  auto sampled = processes->sampled.all();
  CHECK(std::ranges::find(sampled, worker_id{0}) == sampled.end());
}

TEST_CASE_FIXTURE(host, "one worker can be killed, once, with the reason in its end") {
  REQUIRE(open());
  REQUIRE(start({0, 1}));
  CHECK(ask<void>(node, kill_worker{run, {1}, "it is not needed any more", secret}));
  CHECK(ask<void>(node, kill_worker{run, {1}, "again", secret}));
  CHECK(ask<void>(node, kill_worker{run, {9}, "nobody", secret}));
  CHECK(ask<void>(node, kill_worker{run_id{"4567"}, {0}, "of another run", secret}));
  auto ended = heard->ended.wait_for(1);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0] == worker_ended{run, {1}, 137, "it is not needed any more; killed by signal 9 (SIGKILL)", {}});
  CHECK(processes->killed_one.all() == std::vector{worker_id{1}});
  CHECK(lives(0));
}

// -- going away -----------------------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(host, "a node without workers may go at once") {
  CHECK(ask<void>(node, drain_request{600'000}));
  REQUIRE(open());
  CHECK(ask<void>(node, drain_request{600'000}));
  CHECK(heard->leaving.wait_for(1).size() == 1);
}

TEST_CASE_FIXTURE(host, "a node that goes tells the drivers once, and waits until no worker is left") {
  auto other = run_id{"4567"};
  REQUIRE(open());
  REQUIRE(open(other));
  REQUIRE(start({0, 1}));
  auto first = self()->request(node, patience, drain_request{600'000});
  auto second = self()->request(node, patience, drain_request{600'000});
  auto leaving = heard->leaving.wait_for(2);
  REQUIRE(leaving.size() == 2);
  CHECK(leaving[0].grace_ms == 600'000);
  CHECK(leaving[0].run != leaving[1].run);
  auto answered = 0;
  processes->end({0}, 0, "exit code 0");
  heard->ended.wait_for(1);
  processes->end({1}, 0, "exit code 0");
  first.receive([&] { ++answered; }, [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
  second.receive([&] { ++answered; }, [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
  CHECK(answered == 2);
  CHECK(heard->ended.wait_for(2).size() == 2);
  CHECK(heard->leaving.all().size() == 2);
}

TEST_CASE_FIXTURE(host, "a node that goes waits no longer than its grace period") {
  REQUIRE(open());
  REQUIRE(start({0}));
  CHECK(ask<void>(node, drain_request{600}));
  CHECK(lives(0));
}

TEST_CASE_FIXTURE(host, "a run that comes to a node that goes is told so") {
  CHECK(ask<void>(node, drain_request{600'000}));
  REQUIRE(open());
  auto leaving = heard->leaving.wait_for(1);
  REQUIRE(leaving.size() == 1);
  CHECK(leaving[0].run == run);
  CHECK(leaving[0].grace_ms <= 600'000);
  CHECK(leaving[0].grace_ms > 0);
}

TEST_CASE_FIXTURE(host,
                  "a drained node stays, refuses new runs, and tells its drivers; so it does when it is resumed") {
  REQUIRE(open());
  REQUIRE(start({0}));
  CHECK(ask<node_report>(node, drain_node{600'000}));
  CHECK(ask<node_report>(node, drain_node{600'000}));
  CHECK(heard->drained.wait_for(1) == std::vector{node_drained{run, 600'000}});
  CHECK(lives(0));
  const auto refused = ask<node_offer>(node, offer_request{run_id{"4567"}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::timed_out);
  CHECK(refused.error().message.find("`troupe resume`") != std::string::npos);
  // A driver that connects anew has to know.
  REQUIRE(ask<run_claimed>(node, adopt_run{run, secret, {2, "b"}}, driver, collectives, store));
  CHECK(heard->drained.wait_for(2).size() == 2);
  CHECK(ask<node_report>(node, resume_node{}));
  CHECK(ask<node_report>(node, resume_node{}));
  CHECK(heard->resumed.wait_for(1) == std::vector{node_resumed{run}});
  CHECK(ask<node_offer>(node, offer_request{run_id{"4567"}}));
  CHECK(heard->resumed.all().size() == 1);
}

TEST_CASE_FIXTURE(host,
                  "while a node looks for a program, whose disk does not answer, it goes on with everything else") {
  std::promise<void> answers;
  processes->on_open = [done = answers.get_future().share()] { done.wait(); };
  // The same driver asks again, with other handles: one search answers both.
  const auto request = open_run{run, "digits", "/opt/train", "c0ffee", secret, timeout_ms, grace_ms, {}};
  auto first = self()->request(node, patience, request, driver, collectives, store);
  auto second = self()->request(node, patience, request, driver, collectives, store);
  CHECK(processes->opened.wait_for(1).size() == 1);
  CHECK(ask<node_offer>(node, offer_request{run_id{"4567"}}));
  auto other = request;
  other.secret = std::string(64, '0');
  const auto refused = ask<run_opened>(node, other, driver, collectives, store);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::wrong_secret);
  CHECK(ask<node_report>(node, node_question{})->runs.empty());
  answers.set_value();
  for (auto* each : {&first, &second})
    each->receive([&](const run_opened& x) { CHECK(x.run == run); },
                  [&](const caf::error& why) { FAIL_CHECK(caf::to_string(why)); });
  CHECK(processes->opened.all().size() == 1);
}

TEST_CASE_FIXTURE(host, "a run that ends while its program is looked for is not opened") {
  std::promise<void> answers;
  processes->on_open = [done = answers.get_future().share()] { done.wait(); };
  auto opening =
      self()->request(node, patience, open_run{run, "digits", "/opt/train", "c0ffee", secret, timeout_ms, grace_ms, {}},
                      driver, collectives, store);
  CHECK(processes->opened.wait_for(1).size() == 1);
  CHECK(ask<void>(node, end_run{run, secret, {}}));
  opening.receive([](const run_opened&) { FAIL_CHECK("it is open"); },
                  [](const caf::error& why) { CHECK(from_caf(why).code == errc::stale_generation); });
  answers.set_value();
  CHECK(ask<node_report>(node, node_question{})->runs.empty());
}

TEST_CASE_FIXTURE(host, "a node says of itself what it has and does") {
  auto other = spawn_node(system(),
                          {.host = "host-b",
                           .address = "10.0.0.8",
                           .capacity = {4, 0},
                           .log = {},
                           .labels = {{"zone", "a"}},
                           .version = "1.2",
                           .certificate_expires = [] { return std::optional{std::int64_t{1'800'000'000}}; }},
                          processes->factory());
  const auto before = ask<node_report>(other, node_question{});
  REQUIRE(before);
  CHECK(*before == node_report{"host-b",
                               "1.2",
                               protocol_version,
                               static_cast<std::uint32_t>(::getpid()),
                               node_phase::available,
                               {4, 0},
                               {4, 0},
                               {{"zone", "a"}},
                               {},
                               1'800'000'000});
  REQUIRE(ask<run_opened>(other, open_run{run, "digits", "/opt/train", "c0ffee", secret, timeout_ms, grace_ms, {}},
                          driver, collectives, store));
  start_workers message{run, {}, {{{0}, {}}, {{1}, {}}}, secret};
  REQUIRE(ask<workers_started>(other, message));
  CHECK(ask<node_report>(other, node_question{})->runs == std::vector<node_run>{{run.value, "digits", 2}});
  CHECK(ask<node_report>(other, drain_node{1000})->phase == node_phase::drained);
  CHECK(ask<node_report>(other, resume_node{})->phase == node_phase::available);
  caf::anon_send_exit(other, caf::exit_reason::user_shutdown);
  CHECK(has_ended(other));
}

TEST_CASE_FIXTURE(host, "a node that ends leaves nobody waiting for its drain") {
  REQUIRE(open());
  REQUIRE(start({0}));
  auto pending = self()->request(node, patience, drain_request{600'000});
  heard->leaving.wait_for(1);
  caf::anon_send_exit(node, caf::exit_reason::user_shutdown);
  auto answered = false;
  pending.receive([&] { answered = true; }, [&](const caf::error&) { answered = true; });
  CHECK(answered);
  CHECK(has_ended(node));
  processes->set_node(node_actor{});
}
