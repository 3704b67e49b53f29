#include "net/connection.hpp"
#include "scratch_runs.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/collectives.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>
#include <doctest/doctest.h>

#include <memory>
#include <string>

// A peer that may connect to a caf-node, and has a run of its own there, but not the secret of the other run.

using namespace troupe;
using namespace troupe::testing;

namespace {

const auto own_secret = std::string(64, 'a');

/// A driver that does not care.
class idle_control : public actors::run_control::base {
 public:
  using actors::run_control::base::base;

  behavior_type make_behavior() override {
    return {
        [](const worker_ready&, const actors::worker_actor&) {},
        [](const run_plan& plan) { return plan_accepted{plan.generation}; },
        [](const regroup_report&) { return next_generation{}; },
        [](const caught_up&) {},
        [](const metrics_batch&) {},
        [](const worker_finished&) {},
        [](const worker_ended&) {},
        [](const worker_output&) {},
        [](const node_beat&) {},
        [](const node_leaving&) {},
        [](const node_drained&) {},
        [](const node_resumed&) {},
        [](const run_superseded&) {},
    };
  }
};

class stranger {
 public:
  stranger(const std::filesystem::path& keys, const std::string& address)
      : config_(make_config(keys)), system_(*config_), self_(system_) {
    node_ = value_or_throw(runtime::connect(system_, value_or_throw(parse_endpoint(address)), hang_limit));
    control_ = system_.spawn<idle_control>();
    collectives_ = actors::spawn_collectives(system_);
    store_ = actors::spawn_checkpoint_store(system_, {{}, "unused", 1, {}});
  }
  ~stranger() {
    for (const auto& each : {caf::actor_cast<caf::actor>(control_), caf::actor_cast<caf::actor>(collectives_),
                             caf::actor_cast<caf::actor>(store_)})
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  error open(const run_id& run, const std::string& secret, const std::string& program) {
    auto file = value_or_throw(runtime::program_file::open(program));
    return ask<run_opened>(open_run{run, "own", program, file.identity().build_id, secret, 60'000, 1'000, {}, {9, "z"}},
                           control_, collectives_, store_);
  }

  error adopt(const run_id& run) {
    return ask<run_claimed>(adopt_run{run, own_secret, {9, "z"}}, control_, collectives_, store_);
  }

  template <class Answer, class... Message>
  error ask(Message... message) {
    error result;
    if constexpr (std::is_void_v<Answer>)
      self_->request(node_, hang_limit, std::move(message)...)
          .receive([] {}, [&](const caf::error& reason) { result = actors::from_caf(reason); });
    else
      self_->request(node_, hang_limit, std::move(message)...)
          .receive([](const Answer&) {}, [&](const caf::error& reason) { result = actors::from_caf(reason); });
    return result;
  }

  /// Sends what the node's interface does not have.
  template <class Message>
  void force(Message message) {
    self_->send(caf::actor_cast<caf::actor>(node_), std::move(message));
  }

 private:
  static std::unique_ptr<caf::actor_system_config> make_config(const std::filesystem::path& keys) {
    init_meta_objects();
    auto result = std::make_unique<caf::actor_system_config>();
    result->set("caf.scheduler.max-threads", 2);
    runtime::secure(*result, value_or_throw(runtime::loopback_keys(keys)));
    return result;
  }

  std::unique_ptr<caf::actor_system_config> config_;
  caf::actor_system system_;
  caf::scoped_actor self_;
  actors::node_actor node_;
  actors::run_control control_;
  actors::collectives_actor collectives_;
  actors::checkpoint_store store_;
};

} // namespace

TEST_CASE("a peer of run A that commands run B is refused and logged, and run B notices nothing") {
  scratch_runs here;
  const std::vector<std::string> steps{"--steps", "3000"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), steps.begin(), steps.end());
    return more;
  };
  auto alone = here.run(here.charlm("alone", with({"--workers", "1"})));
  INFO(alone.err);
  REQUIRE(alone.status == exit_status{0, {}});

  auto node = here.start_node({"--program-dir", here.programs()});
  auto driver = here.start(here.charlm("b", with({"--workers", "2", "--nodes", node.address})));
  here.await_step(driver, "b", 20);
  const auto theirs = run_id{nlohmann::json::parse(read_file(here.run_directory("b") / "run.json"))["run"]};
  {
    stranger peer{here.keys(), node.address};
    CHECK(peer.open(run_id{"a"}, own_secret, charlm_program()) == error{});
    for (const auto& secret : {own_secret, std::string{}}) {
      for (std::uint32_t worker = 0; worker < 3; ++worker)
        CHECK(peer.ask<void>(kill_worker{theirs, {worker}, "says run A", secret, {9, "z"}}).code == errc::wrong_secret);
      CHECK(peer.ask<void>(end_run{theirs, secret, {9, "z"}}).code == errc::wrong_secret);
      CHECK(peer.ask<workers_started>(start_workers{theirs, {}, {{{99}, {}, 0}}, secret, {9, "z"}}).code ==
            errc::wrong_secret);
      CHECK(peer.ask<run_claimed>(claim_run{theirs, secret, {9, "z"}}).code == errc::wrong_secret);
    }
    CHECK(peer.adopt(theirs).code == errc::wrong_secret);
    CHECK(peer.open(theirs, own_secret, charlm_program()).code == errc::wrong_secret);
    // What a node's own threads tell it is no message that others can send.
    peer.force(worker_ended{theirs, {0}, 1, "says run A", {}, false});
    // Nor does it start other programs than those of its directory.
    const auto outside = peer.open(run_id{"c"}, own_secret, "/bin/sh");
    CHECK(outside.code == errc::not_found);
    INFO(outside.message);
    CHECK(contains(outside.message, (std::filesystem::path{here.programs()} / "sh").string()));
    // Its own run is its own.
    CHECK(peer.ask<void>(end_run{run_id{"a"}, own_secret, {9, "z"}}) == error{});
  }
  const auto status = driver.wait();
  INFO(driver.err() << node.process.err());
  REQUIRE(status == exit_status{0, {}});
  const auto result = here.result("b");
  INFO(result.dump(2));
  CHECK(result["state_sha256"] == here.result("alone")["state_sha256"]);
  CHECK(result["failures"].empty());
  CHECK(result["restarts"] == 0);
  const auto log = node.process.err();
  for (const auto* command : {"kill_worker", "end_run", "start_workers", "claim_run", "adopt_run", "open_run"})
    CHECK(contains(log, std::string{"refused "} + command + " for run b (" + theirs.value +
                            "): its sender does not know the run's secret"));
}
