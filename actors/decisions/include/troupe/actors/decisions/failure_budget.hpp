#pragma once

#include <troupe/actors/decisions/worker_table.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

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
  /// Why the last failure is one too many, for people.
  [[nodiscard]] std::string describe_excess() const;

 private:
  std::uint32_t most_;
  std::chrono::milliseconds window_;
  std::deque<run_time> recent_;
};

/// How many joiners in a row may end before they get a place, until no more are started: thirty that are killed from
/// outside, or three that end by themselves.
class joiner_budget {
 public:
  void add(ended_by who) noexcept { spent_ += cost(who); }
  /// A joiner got a place, or there is reason to try again.
  void reset() noexcept { spent_ = 0; }
  [[nodiscard]] bool is_spent() const noexcept { return spent_ >= limit; }
  /// How many joiners that end as the last one did have spent it.
  [[nodiscard]] std::uint32_t in_row(ended_by last) const noexcept { return spent_ / cost(last); }

 private:
  static constexpr std::uint32_t limit = 30;

  static std::uint32_t cost(ended_by who) noexcept { return who == ended_by::outside ? 1 : 10; }

  std::uint32_t spent_ = 0;
};

} // namespace troupe::actors
