#pragma once

#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Whether the greatest or the smallest score is the best.
enum class score_mode : std::uint8_t { max = 1, min = 2 };

} // namespace troupe

namespace troupe::serialization {

/// Which checkpoints stay once there is a new one.
struct retention_policy {
  /// So many of the latest; 1 or more.
  std::size_t num_to_keep = 2;
  /// The metric by which the best one stays as well; empty for none.
  std::string score_attribute = {};
  score_mode score_order = score_mode::max;
};

/// A checkpoint, as far as its staying is concerned.
struct retention_candidate {
  step_id step;
  std::map<std::string, double> metrics = {};
};

/// What becomes of a checkpoint, and why.
struct retention_decision {
  step_id step;
  bool stays = false;
  /// "the latest", "the best by loss: 0.25", "older than the 2 latest", for the log.
  std::string reason;

  bool operator==(const retention_decision&) const = default;
};

/// Decides for each of the candidates, whose steps are different; the result is in order of step. The latest
/// `num_to_keep` stay, and the best by the policy's metric. One without it, or with a value that is no number, is never
/// the best; of equals the newer one is.
[[nodiscard]] std::vector<retention_decision> decide_retention(std::span<const retention_candidate> candidates,
                                                               const retention_policy& policy);

} // namespace troupe::serialization
