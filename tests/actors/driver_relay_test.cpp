#include "actor_fixture.hpp"

#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/collectives.hpp>
#include <troupe/actors/driver_relay.hpp>

#include <doctest/doctest.h>

#include <any>
#include <memory>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto run = run_id{"0123"};

/// What a driver has received.
struct heard {
  record<worker_ready> ready;
  record<regroup_report> reports;
  record<metrics_batch> batches;
  record<worker_finished> finished;
};

/// A driver that receives everything, and answers only if it is to.
class driver_that_may_answer : public run_control::base {
 public:
  driver_that_may_answer(caf::actor_config& cfg, std::shared_ptr<heard> all, bool answers)
      : run_control::base(cfg), all_(std::move(all)), answers_(answers) {}

  behavior_type make_behavior() override {
    return {
        [this](const worker_ready& message, const worker_actor&) { return note<void>(all_->ready, message); },
        [](const run_plan& plan) { return plan_accepted{plan.generation}; },
        [this](const regroup_report& message) {
          return note<next_generation>(all_->reports, message, next_generation{released{}});
        },
        [](const caught_up&) {},
        [this](const metrics_batch& message) { return note<void>(all_->batches, message); },
        [this](const worker_finished& message) { return note<void>(all_->finished, message); },
        [](const worker_ended&) {},
        [](const worker_output&) {},
        [](const node_beat&) {},
        [](const node_leaving&) {},
        [](const node_drained&) {},
        [](const node_resumed&) {},
        [](const run_superseded&) {},
    };
  }

  void on_exit() override { unanswered_.clear(); }

 private:
  template <class Result, class Message, class... Value>
  caf::result<Result> note(record<Message>& into, const Message& message, Value... value) {
    into.add(message);
    auto promise = make_response_promise<Result>();
    if (answers_)
      promise.deliver(std::move(value)...);
    else
      unanswered_.emplace_back(promise);
    return promise;
  }

  std::shared_ptr<heard> all_;
  bool answers_;
  /// Promises.
  std::vector<std::any> unanswered_;
};

class relay_fixture : public actor_fixture {
 public:
  relay_fixture() {
    collectives = spawn_collectives(system());
    store = spawn_checkpoint_store(system(), {run, "unused", {1}, {}});
    relay = spawn_driver_relay(system());
  }
  ~relay_fixture() {
    // In CAF 1.1 a promise keeps the actor alive that has it.
    for (const auto& driver : drivers)
      caf::anon_send_exit(driver, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(relay, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(collectives, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(store, caf::exit_reason::user_shutdown);
  }

  /// Another driver from now on.
  std::shared_ptr<heard> connect(bool answers) {
    auto result = std::make_shared<heard>();
    // Without a handle its actor would end, and with it what it has not answered.
    drivers.emplace_back(system().spawn<driver_that_may_answer>(result, answers));
    self()->send(relay, drivers.back(), collectives, store);
    return result;
  }

  static regroup_report report(std::uint64_t number) {
    regroup_report result;
    result.run = run;
    result.number = number;
    return result;
  }

  std::vector<run_control> drivers;
  collectives_actor collectives;
  checkpoint_store store;
  driver_relay relay;
};

} // namespace

TEST_CASE_FIXTURE(relay_fixture, "a relay passes on what it is told once it knows the driver, and what comes back") {
  auto answer = self()->request(relay, patience, report(1));
  auto driver = connect(true);
  answer.receive([](const next_generation& next) { CHECK(std::holds_alternative<released>(next.what)); },
                 [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
  CHECK(driver->reports.wait_for(1) == std::vector{report(1)});
}

TEST_CASE_FIXTURE(relay_fixture, "what a driver has not answered goes to the next one, in order, and nothing else") {
  auto first = connect(false);
  metrics_batch batch;
  batch.run = run;
  batch.number = 1;
  auto pushed = self()->request(relay, patience, batch);
  auto reported = self()->request(relay, patience, report(1));
  worker_finished end;
  end.run = run;
  self()->send(relay, end);
  CHECK(first->finished.wait_for(1).size() == 1);
  CHECK(first->reports.all().size() == 1);
  auto second = connect(true);
  pushed.receive([] {}, [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
  reported.receive([](const next_generation&) {}, [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
  CHECK(second->finished.wait_for(1) == std::vector{end});
  CHECK(second->batches.all() == std::vector{batch});
  CHECK(second->reports.all() == std::vector{report(1)});
  // What was answered is over, but the end of a training function, which another driver has to know.
  auto third = connect(true);
  CHECK(ask<next_generation>(relay, report(2)));
  CHECK(third->reports.all() == std::vector{report(2)});
  CHECK(third->batches.all().empty());
  CHECK(third->finished.all() == std::vector{end});
}

TEST_CASE_FIXTURE(relay_fixture, "each driver is told first who the worker is") {
  auto first = connect(true);
  worker_ready ready;
  ready.run = run;
  ready.worker = {3};
  CHECK(ask<void>(relay, ready, worker_actor{}));
  CHECK(first->ready.all() == std::vector{ready});
  auto second = connect(true);
  CHECK(ask<next_generation>(relay, report(1)));
  CHECK(second->ready.all() == std::vector{ready});
}

TEST_CASE_FIXTURE(relay_fixture, "an error of the driver's is an answer") {
  connect(true);
  caf::anon_send_exit(collectives, caf::exit_reason::user_shutdown);
  CHECK(has_ended(collectives));
  auto result = ask<exchange_result>(relay, exchange_request{run, {1}, 0, {0}, "blob", 0});
  CHECK_FALSE(result);
}

TEST_CASE_FIXTURE(relay_fixture, "a promise that the same driver breaks when it is asked again is no answer") {
  struct forgetful : run_control::base {
    forgetful(caf::actor_config& cfg, std::shared_ptr<record<regroup_report>> all)
        : run_control::base(cfg), all_(std::move(all)) {}

    behavior_type make_behavior() override {
      return {
          [](const worker_ready&, const worker_actor&) {},
          [](const run_plan& plan) { return plan_accepted{plan.generation}; },
          [this](const regroup_report& message) {
            all_->add(message);
            // The one before goes.
            last_ = make_response_promise<next_generation>();
            if (all_->all().size() == 3)
              last_.deliver(next_generation{released{}});
            return last_;
          },
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

    std::shared_ptr<record<regroup_report>> all_;
    caf::typed_response_promise<next_generation> last_;
  };
  auto asked = std::make_shared<record<regroup_report>>();
  const auto driver = run_control{system().spawn<forgetful>(asked)};
  auto answer = self()->request(relay, patience, report(1));
  for (std::size_t i = 1; i <= 3; ++i) {
    self()->send(relay, driver, collectives, store);
    CHECK(asked->wait_for(i).size() == i);
  }
  answer.receive([](const next_generation& next) { CHECK(std::holds_alternative<released>(next.what)); },
                 [](const caf::error& reason) { FAIL_CHECK(caf::to_string(reason)); });
}
