#pragma once

#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Whether the greatest or the smallest score is best.
enum class score_mode : std::uint8_t { max = 1, min = 2 };

} // namespace troupe

namespace troupe::serialization {

/// Which checkpoints to keep when there is a new one.
struct retention_policy {
  /// The number of latest checkpoints to keep; at least 1.
  std::size_t num_to_keep = 2;
  /// The metric by which the best checkpoint is kept as well; empty for none.
  std::string score_attribute = {};
  score_mode score_order = score_mode::max;
  /// How many of the best to keep; at least 1.
  std::size_t num_best_to_keep = 1;
};

/// The properties of a checkpoint that matter for retention.
struct retention_candidate {
  step_id step;
  std::map<std::string, double> metrics = {};
};

/// Whether a checkpoint is kept, and why.
struct retention_decision {
  step_id step;
  bool stays = false;
  /// For the log: "the latest", "the best by loss: 0.25", "older than the 2 latest".
  std::string reason;

  bool operator==(const retention_decision&) const = default;
};

/// The candidates that have a score by the policy, best first. A candidate without the metric, or with NaN, has none;
/// of equal scores the newer candidate is better.
[[nodiscard]] std::vector<step_id> rank_by_score(std::span<const retention_candidate> candidates,
                                                 const retention_policy& policy);

/// Decides for each candidate; their steps are distinct, and the result is ordered by step. The latest `num_to_keep`
/// and the `num_best_to_keep` best by the policy's metric are kept.
[[nodiscard]] std::vector<retention_decision> decide_retention(std::span<const retention_candidate> candidates,
                                                               const retention_policy& policy);

} // namespace troupe::serialization
