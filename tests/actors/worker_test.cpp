#include "actor_fixture.hpp"

#include <troupe/actors/worker.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

struct fake_host : training_host {
  void begin(const begin_training& message) override { calls.push_back("begin " + message.settings.function); }
  void command(const control_command& message) override {
    calls.push_back("command " + std::to_string(message.sequence));
  }
  void abort(const abort_training& message) override { calls.push_back("abort " + message.reason.message); }
  void release() override { calls.emplace_back("release"); }
  worker_beat beat() override {
    worker_beat result;
    result.run = {"0123"};
    result.worker = {3};
    result.progress = ++beats;
    return result;
  }

  std::string describe() override { return "trains"; }

  std::vector<std::string> calls;
  std::uint64_t beats = 0;
};

/// Hears beats, and nothing else.
class fake_node_of_workers : public node_actor::base {
 public:
  fake_node_of_workers(caf::actor_config& cfg, std::shared_ptr<record<worker_beat>> beats)
      : node_actor::base(cfg), beats_(std::move(beats)) {}

  behavior_type make_behavior() override {
    return {
        [](const offer_request&) { return node_offer{}; },
        [](const lease_request&) {},
        [](const open_run&, const run_control&, const collectives_actor&, const checkpoint_store&) {
          return run_opened{};
        },
        [](const claim_run&) { return run_claimed{}; },
        [](const adopt_run&, const run_control&, const collectives_actor&, const checkpoint_store&) {
          return run_claimed{};
        },
        [](const start_workers&) { return workers_started{}; },
        [](const keep_processes&, const process_keeper&) {},
        [](const kill_worker&) {},
        [this](const worker_beat& beat) { beats_->add(beat); },
        [](const drain_request&) {},
        [](const node_question&) { return node_report{}; },
        [](const drain_node&) { return node_report{}; },
        [](const resume_node&) { return node_report{}; },
        [](const end_run&) {},
        [](const join_request&) { return join_challenge{}; },
        [](const join_proof&, const driver_follower&) -> caf::result<run_control, collectives_actor, checkpoint_store> {
          return to_caf({errc::wrong_secret, "nobody joins here"});
        },
    };
  }

 private:
  std::shared_ptr<record<worker_beat>> beats_;
};

} // namespace

TEST_CASE_FIXTURE(actor_fixture, "a worker hands on what it is told, in order, and answers at once") {
  auto host = std::make_shared<fake_host>();
  auto worker = spawn_worker(system(), node_actor{}, host);
  begin_training begin;
  begin.settings.function = "train";
  CHECK(ask<void>(worker, begin));
  CHECK(ask<void>(worker, control_command{{}, 5, stop_command{}}));
  CHECK(ask<void>(worker, abort_training{{}, {1}, {errc::aborted, "why"}}));
  CHECK(ask<void>(worker, release_worker{}));
  CHECK(ask<activity_answer>(worker, activity_question{})->text == "trains");
  caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
  CHECK(has_ended(worker));
  CHECK(host->calls == std::vector<std::string>{"begin train", "command 5", "abort why", "release"});
}

TEST_CASE_FIXTURE(actor_fixture, "a worker tells its node several times a second what it does, until it ends") {
  auto beats = std::make_shared<record<worker_beat>>();
  auto node = system().spawn<fake_node_of_workers>(beats);
  auto host = std::make_shared<fake_host>();
  auto worker = spawn_worker(system(), node, host);
  auto heard = beats->wait_for(3);
  REQUIRE(heard.size() >= 3);
  for (std::uint64_t i = 0; i < 3; ++i) {
    CHECK(heard[i].run == run_id{"0123"});
    CHECK(heard[i].worker == worker_id{3});
    CHECK(heard[i].progress == i + 1);
  }
  caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
  CHECK(has_ended(worker));
  caf::anon_send_exit(node, caf::exit_reason::user_shutdown);
}
