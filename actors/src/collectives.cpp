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
        [this](const worker_gone& message) { grant(permits_.gone(message)); },
    };
  }

  void on_exit() override {
    // Handles keep this object and its promises alive, so fail the promises explicitly.
    fail_all(to_caf({errc::aborted, "the run is ending"}));
    for (auto& [worker, waiting] : requests_)
      waiting.deliver(to_caf({errc::aborted, "the run is ending"}));
  }

  const char* name() const override { return "troupe.collectives"; }

 private:
  void begin(const generation_started& message) {
    if (permits_.begin(message))
      for (auto& [worker, waiting] : std::exchange(requests_, {}))
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
    auto outcome = permits_.ask(message);
    if (!outcome)
      return to_caf(outcome.error());
    // A repeated request replaces the earlier one.
    if (auto earlier = requests_.extract(message.worker); !earlier.empty())
      earlier.mapped().deliver(to_caf({errc::aborted, "this worker has requested its exit again"}));
    auto promise = make_response_promise<exit_granted>();
    requests_.emplace(message.worker, promise);
    grant(*outcome);
    return promise;
  }

  void withdraw(const exit_withdrawn& message) {
    const auto due = permits_.withdraw(message);
    if (auto asking = requests_.extract(message.worker); !asking.empty())
      asking.mapped().deliver(to_caf({errc::aborted, "the exit request was withdrawn"}));
    grant(due);
  }

  void grant(const std::optional<exit_permits::grant>& due) {
    if (!due)
      return;
    if (auto asking = requests_.extract(due->worker); !asking.empty())
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
      // One message for all ranks: its size grows with their number, and it stays in memory until the last is sent.
      const auto answer = caf::make_message(std::move(**outcome));
      for (auto& each : waiting)
        each.deliver(answer);
      waiting_.erase(message.sequence);
    }
    return caf::delegated<exchange_result>{};
  }

  exchange_table table_;
  exit_permits permits_;
  std::map<worker_id, caf::typed_response_promise<exit_granted>> requests_;
  /// By sequence number. Promises without a type, which deliver a message that is already made.
  std::map<std::uint64_t, std::vector<caf::response_promise>> waiting_;
};

} // namespace

collectives_actor spawn_collectives(caf::actor_system& system) {
  return system.spawn<collectives_state>();
}

} // namespace troupe::actors
