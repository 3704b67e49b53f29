#pragma once

#include <caf/typed_response_promise.hpp>

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe::actors {

/// The drain of a node whose host program is going away: its deadline for moving workers, and the pending requests.
class draining {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  explicit draining(time_point grace_ends) : grace_ends_(grace_ends) {}

  /// What is left of the grace period, for the drivers.
  [[nodiscard]] std::uint64_t grace_left(time_point now) const;

  /// Time until the requests are answered at the latest, which is early enough for reports to the drivers.
  [[nodiscard]] std::chrono::milliseconds time_left(time_point now) const;

  void add(caf::typed_response_promise<void> waiting) { waiting_.push_back(std::move(waiting)); }
  void answer();

 private:
  time_point grace_ends_;
  std::vector<caf::typed_response_promise<void>> waiting_;
};

} // namespace troupe::actors
