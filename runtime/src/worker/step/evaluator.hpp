#pragma once

#include "worker/group/group_membership.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::runtime {

/// Evaluations that are split over the workers, with the same bits on any number of them. Used by the training thread.
class evaluator {
 public:
  using evaluation = std::function<void(std::span<const std::uint64_t>, std::span<double>)>;

  evaluator(const run_settings& settings, group_membership& members, activity& doing)
      : settings_(settings), members_(members), activity_(doing) {}

  /// The sums over `samples` samples. Repeats the evaluation where the group is lost on the way, unless another member
  /// has the result; a joiner takes it from the members. Throws `exception`, and `step_interrupted` where a joiner
  /// cannot repeat the members' step to its end.
  [[nodiscard]] std::vector<double> evaluate(std::uint64_t samples, std::size_t number_of_sums,
                                             const evaluation& function);
  /// From here on the loss of the group ends an evaluation, instead of repeating it.
  void end_with_group() noexcept { survives_loss_ = false; }

 private:
  [[nodiscard]] std::vector<double> evaluate_shards(std::uint64_t samples, std::size_t number_of_sums,
                                                    const evaluation& function);
  [[nodiscard]] std::vector<double> take_from_members();

  const run_settings& settings_;
  group_membership& members_;
  activity& activity_;
  bool survives_loss_ = true;
};

} // namespace troupe::runtime
