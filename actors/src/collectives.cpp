#include <troupe/actors/collectives.hpp>

#include <troupe/actors/decisions/exchange_table.hpp>
#include <troupe/actors/decisions/exit_permits.hpp>
#include <troupe/actors/error_conversion.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <vector>

namespace troupe::actors {

namespace {

class collectives_state : public collectives_actor::base {
 public:
  using collectives_actor::base::base;

  behavior_type make_behavior() override {
    return {
        [this](const generation_started& message) { begin(message); },
        [this](const exchange_request& message) { return exchange(message); },
        [this](const exchange_ended& message) { end(message); },
        [this](const exit_request& message) { return request_exit(message); },
        [this](const exit_withdrawn& message) { withdraw(message); },
        [this](const worker_gone& message) { grant(leaves_.gone(message)); },
    };
  }

  void on_exit() override {
    // Whoever holds a handle keeps this object, and with it the promises: they are not broken by themselves.
    fail_all(to_caf({errc::aborted, "the run is ending"}));
    for (auto& [worker, waiting] : asking_)
      waiting.deliver(to_caf({errc::aborted, "the run is ending"}));
  }

  const char* name() const override { return "troupe.collectives"; }

 private:
  void begin(const generation_started& message) {
    if (leaves_.begin(message))
      for (auto& [worker, waiting] : std::exchange(asking_, {}))
        waiting.deliver(
            to_caf({errc::stale_generation,
                    fmt::format("generation {} was formed without waiting for this worker", message.generation)}));
    if (!table_.begin(message))
      return;
    fail_all(to_caf({errc::stale_generation, fmt::format("generation {} has begun", message.generation)}));
  }

  void end(const exchange_ended& message) {
    if (!table_.end(message))
      return;
    if (auto waiting = waiting_.extract(message.sequence); !waiting.empty())
      for (auto& each : waiting.mapped())
        each.deliver(to_caf({errc::aborted, fmt::format("exchange {} was given up", message.sequence)}));
  }

  caf::result<exit_granted> request_exit(const exit_request& message) {
    auto outcome = leaves_.ask(message);
    if (!outcome)
      return to_caf(outcome.error());
    // Who asks again takes the place of its earlier question.
    if (auto earlier = asking_.extract(message.worker); !earlier.empty())
      earlier.mapped().deliver(to_caf({errc::aborted, "leave was asked for again"}));
    auto promise = make_response_promise<exit_granted>();
    asking_.emplace(message.worker, promise);
    grant(*outcome);
    return promise;
  }

  void withdraw(const exit_withdrawn& message) {
    const auto due = leaves_.withdraw(message);
    if (auto asking = asking_.extract(message.worker); !asking.empty())
      asking.mapped().deliver(to_caf({errc::aborted, "the question for leave was withdrawn"}));
    grant(due);
  }

  void grant(const std::optional<exit_permits::grant>& due) {
    if (!due)
      return;
    if (auto asking = asking_.extract(due->worker); !asking.empty())
      asking.mapped().deliver(due->answer);
  }

  void fail_all(const caf::error& reason) {
    for (auto& [sequence, waiting] : std::exchange(waiting_, {}))
      for (auto& each : waiting)
        each.deliver(reason);
  }

  caf::result<exchange_result> exchange(const exchange_request& message) {
    auto outcome = table_.add(message);
    if (!outcome)
      return to_caf(outcome.error());
    auto& waiting = waiting_[message.sequence];
    waiting.push_back(make_response_promise());
    if (*outcome) {
      // One message for all: it is as long as there are ranks, and stays in memory until it is on its way to the last.
      const auto answer = caf::make_message(std::move(**outcome));
      for (auto& each : waiting)
        each.deliver(answer);
      waiting_.erase(message.sequence);
    }
    return caf::delegated<exchange_result>{};
  }

  exchange_table table_;
  exit_permits leaves_;
  std::map<worker_id, caf::typed_response_promise<exit_granted>> asking_;
  /// By sequence number. Promises without a type, which deliver a message that is already made.
  std::map<std::uint64_t, std::vector<caf::response_promise>> waiting_;
};

} // namespace

collectives_actor spawn_collectives(caf::actor_system& system) {
  return system.spawn<collectives_state>();
}

} // namespace troupe::actors
