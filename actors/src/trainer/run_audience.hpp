#pragma once

#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>

#include <caf/typed_response_promise.hpp>

#include <utility>
#include <vector>

namespace troupe::actors {

/// The receivers of a run's events and result: observers get all events, and the requester of the run gets its result.
class run_audience {
 public:
  using promise = caf::typed_response_promise<run_result>;

  void add(run_observer observer) { observers_.push_back(std::move(observer)); }
  template <class Sender, class Event>
  void publish(Sender& self, const Event& event) const {
    for (const auto& observer : observers_)
      self.send(observer, event);
  }

  /// The requester waits for `deliver`.
  const promise& expect_result(promise answer) {
    answer_ = std::move(answer);
    return answer_;
  }
  [[nodiscard]] bool awaits_result() const { return answer_.pending(); }
  void deliver(const run_result& result) { answer_.deliver(result); }

  /// Fails the pending request, and forgets all observers.
  void dismiss(const error& why) {
    if (answer_.pending())
      answer_.deliver(to_caf(why));
    observers_.clear();
  }

 private:
  std::vector<run_observer> observers_;
  promise answer_;
};

} // namespace troupe::actors
