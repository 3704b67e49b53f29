#pragma once

#include <troupe/actors/decisions/worker_table.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// How many failures a run survives: at most so many within a window of time.
class failure_budget {
 public:
  failure_budget(std::uint32_t most, std::chrono::milliseconds window) : most_(most), window_(window) {}

  /// A failure happens now.
  void add(run_time now) { recent_.push_back(now); }
  /// Whether the failures within the window that ends now are not too many.
  [[nodiscard]] bool holds(run_time now);
  /// Whether the run may survive anything at all.
  [[nodiscard]] bool survives_failures() const noexcept { return most_ > 0; }
  [[nodiscard]] std::vector<run_time> recent() const { return {recent_.begin(), recent_.end()}; }
  /// Why the last failure is one too many, for people.
  [[nodiscard]] std::string describe_excess() const;

 private:
  std::uint32_t most_;
  std::chrono::milliseconds window_;
  std::deque<run_time> recent_;
};

/// How many joiners in a row may end before they get a place: after thirty that are killed from outside, or three that
/// end by themselves, none is started for a while. Then they are tried again, and the next failure doubles the pause:
/// five seconds at first, five minutes at most.
class joiner_budget {
 public:
  void add(ended_by who) noexcept;
  /// A joiner got a place, or there is reason to try again at once.
  void reset() noexcept { *this = {}; }
  /// Whether none is to be started now.
  [[nodiscard]] bool is_spent() const noexcept { return spent_ >= limit; }
  /// How long none is started once it is spent.
  [[nodiscard]] std::chrono::seconds pause() const noexcept { return pause_; }
  /// How many have ended in a row.
  [[nodiscard]] std::uint32_t in_row() const noexcept { return in_row_; }
  /// To be asked several times a second. True once when a pause is over: the budget is not spent any more.
  [[nodiscard]] bool end_pause(run_time now) noexcept;

 private:
  static constexpr std::uint32_t limit = 30;
  static constexpr std::chrono::seconds first_pause{5};
  static constexpr std::chrono::seconds longest_pause{300};

  std::uint32_t spent_ = 0;
  std::uint32_t in_row_ = 0;
  std::chrono::seconds pause_ = first_pause;
  /// When the pause began, as far as it is known: `add` has no clock.
  std::optional<run_time> since_;
};

} // namespace troupe::actors
