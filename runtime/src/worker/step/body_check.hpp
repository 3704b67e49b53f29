#pragma once

#include <troupe/tracked_state.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <vector>

namespace troupe::runtime {

/// Finds bodies that write tracked state before `all_reduce`: a try of a step that is interrupted could not be
/// repeated. Looks at steps 1, 2, 4, 8, ... of a loop and at every 1,024th, or at each.
class body_check {
 public:
  enum class frequency : std::uint8_t { sampled, each_step };

  /// `checks_first` is false on a joiner, whose first steps the members have checked.
  body_check(frequency how_often, bool checks_first)
      : how_often_(how_often), is_due_(checks_first || how_often == frequency::each_step) {}

  /// A try of a step begins.
  void begin(const tracked_state& state);

  /// Before the reduction. Throws `exception` with `errc::user_error` if the state has changed since `begin`.
  void check(step_id step, const tracked_state& state) const;

  /// The step counts.
  void end_step() noexcept;

 private:
  frequency how_often_;
  bool is_due_;
  std::uint64_t steps_ = 0;
  /// Of the parts of the state; empty where nothing is checked.
  std::vector<std::uint64_t> digests_;
};

} // namespace troupe::runtime
