#pragma once

#include <troupe/messages/worker.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Watches the metrics of a loop's steps for values that are NaN or infinite.
class finite_watch {
 public:
  explicit finite_watch(std::vector<std::string> metrics) : metrics_(std::move(metrics)), states_(metrics_.size()) {}

  /// A try of a step begins.
  void begin() noexcept;

  /// This rank has contributed a value that is not finite.
  void note(step_id step, shard_id shard, std::size_t metric, double value);

  /// What the driver has to know before others can end the run because of it: the first contribution to a metric in a
  /// row of steps.
  [[nodiscard]] std::vector<not_finite_row> take();

  struct finding {
    /// The first in a row of steps, by metric.
    std::vector<not_finite_row> first;
    /// "loss is nan, error is inf"; empty if all are finite.
    std::string text;
  };
  /// Checks the means of a committed step, which are the same on every rank.
  [[nodiscard]] finding check(step_id step, std::span<const double> means);

 private:
  struct metric_state {
    /// What this rank has contributed to the present step, if it is not finite.
    std::optional<not_finite_row> contributed;
    /// Whether what it contributed to the step before was finite, and the mean of that step.
    bool contributes_finite = true;
    bool was_finite = true;
  };

  std::vector<std::string> metrics_;
  std::vector<metric_state> states_;
};

} // namespace troupe::runtime
