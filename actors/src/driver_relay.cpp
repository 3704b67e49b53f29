#include <troupe/actors/driver_relay.hpp>

#include "outbox.hpp"

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <optional>
#include <utility>

namespace troupe::actors {

namespace {

/// A worker is connected only to its node, which forwards messages, or drops them while it has no connection to the
/// driver. So every error that comes back is an answer.
bool is_any_answer(const caf::error&) {
  return true;
}

class driver_relay_state : public driver_relay::base {
 public:
  using driver_relay::base::base;

  behavior_type make_behavior() override {
    return {
        [this](const run_control& control, const collectives_actor& collectives, const checkpoint_store& store) {
          connect({control, collectives, store});
        },
        [this](const worker_ready& message, const worker_actor& worker) { return introduce(message, worker); },
        [this](const run_plan& message) { return pass<plan_accepted>(control_, message); },
        [this](const regroup_report& message) { return pass<next_generation>(control_, message); },
        [this](const caught_up& message) { control_.send(*this, message); },
        [this](const metrics_batch& message) { return pass<void>(control_, message); },
        [this](const worker_finished& message) {
          control_.request<void>(
              *this, [this, message] { finished_ = message; }, [](const caf::error&) {}, message);
        },
        [this](const exchange_request& message) { return pass<exchange_result>(collectives_, message); },
        [this](const exchange_ended& message) { collectives_.send(*this, message); },
        [this](const exit_request& message) { return pass<exit_granted>(collectives_, message); },
        [this](const exit_withdrawn& message) { collectives_.send(*this, message); },
        [this](const checkpoint_part& message) { return pass<checkpoint_outcome>(store_, message); },
        [this](const storage_probe& message) { return pass<storage_view>(store_, message); },
    };
  }

  void on_exit() override {
    control_ = {};
    collectives_ = {};
    store_ = {};
    introduction_.reset();
  }

  const char* name() const override { return "troupe.driver_relay"; }

 private:
  template <class Handle>
  using box = outbox<driver_relay_state, Handle, is_any_answer>;

  struct introduction {
    worker_ready message;
    worker_actor worker;
  };

  void connect(const driver_handles& driver) {
    // The driver cannot use the handle that it got over an earlier connection.
    if (introduction_)
      request(driver.control, caf::infinite, introduction_->message, introduction_->worker)
          .then([] {}, [](const caf::error&) {});
    // It may be another driver, to which this is new.
    if (finished_)
      request(driver.control, caf::infinite, *finished_).then([] {}, [](const caf::error&) {});
    control_.connect(driver.control);
    collectives_.connect(driver.collectives);
    store_.connect(driver.store);
  }

  caf::result<void> introduce(const worker_ready& message, const worker_actor& worker) {
    auto promise = make_response_promise<void>();
    control_.request<void>(
        *this,
        [this, promise, what = introduction{message, worker}]() mutable {
          introduction_ = std::move(what);
          promise.deliver();
        },
        [promise](const caf::error& reason) mutable { promise.deliver(reason); }, message, worker);
    return promise;
  }

  template <class Result, class Handle, class Message>
  caf::result<Result> pass(box<Handle>& whom, const Message& message) {
    auto promise = make_response_promise<Result>();
    auto fail = [promise](const caf::error& reason) mutable { promise.deliver(reason); };
    if constexpr (std::is_void_v<Result>)
      whom.template request<void>(
          *this, [promise]() mutable { promise.deliver(); }, fail, message);
    else
      whom.template request<Result>(
          *this, [promise](Result& result) mutable { promise.deliver(std::move(result)); }, fail, message);
    return promise;
  }

  box<run_control> control_;
  box<collectives_actor> collectives_;
  box<checkpoint_store> store_;
  /// This worker's introduction to each new driver.
  std::optional<introduction> introduction_;
  /// How its training function has ended, once a driver knows.
  std::optional<worker_finished> finished_;
};

} // namespace

driver_relay spawn_driver_relay(caf::actor_system& system) {
  return system.spawn<driver_relay_state>();
}

} // namespace troupe::actors
