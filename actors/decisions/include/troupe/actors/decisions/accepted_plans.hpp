#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::actors {

/// The plans that the members of an attempt have agreed on: one for each loop of the training function.
class accepted_plans {
 public:
  /// Adds the plan of a loop. A plan may be added again if its answers were lost. Returns whether the members enter
  /// this loop for the first time, from an earlier one.
  bool add(const run_plan& plan);

  [[nodiscard]] const std::vector<run_plan>& all() const noexcept { return plans_; }
  [[nodiscard]] bool empty() const noexcept { return plans_.empty(); }
  /// The plan of a loop; null if it is not agreed on.
  [[nodiscard]] const run_plan* of_loop(std::uint32_t loop) const;
  /// Whether the members have completed this loop; whether they are in it.
  [[nodiscard]] bool is_behind(std::uint32_t loop) const noexcept { return loop + 1 < plans_.size(); }
  [[nodiscard]] bool is_current(std::uint32_t loop) const noexcept { return loop + 1 == plans_.size(); }
  /// The members' loop. There is one.
  [[nodiscard]] std::uint32_t current_loop() const noexcept { return static_cast<std::uint32_t>(plans_.size() - 1); }
  /// Whether the training function has a loop of its own, without boundaries that the coordinator could use.
  [[nodiscard]] bool has_own_loop() const { return !plans_.empty() && plans_.back().batch_samples == 0; }
  /// The size of the state that a joiner needs; 0 if no plan is agreed on.
  [[nodiscard]] std::uint64_t state_bytes() const { return plans_.empty() ? 0 : plans_.back().state_bytes; }

 private:
  std::vector<run_plan> plans_;
};

/// How the plans of the active workers differ; each of them must have one.
[[nodiscard]] std::optional<error> find_plan_difference(const worker_table& workers);

} // namespace troupe::actors
