#pragma once

#include <troupe/boosting.hpp>
#include <troupe/metrics.hpp>
#include <troupe/train_context.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::boosting {

/// The user's metrics of one round, over the rows of all workers.
class custom_metrics {
 public:
  /// `functions` must outlive this.
  explicit custom_metrics(const custom_functions& functions) noexcept : functions_(functions) {}

  [[nodiscard]] bool empty() const noexcept { return functions_.metrics.empty(); }

  /// Computes the terms of this rank's rows of an evaluation set.
  void add(const std::string& set, const scored_rows& rows);

  /// The metrics as "NAME-METRIC", of the rows that were added on this rank. Throws `errc::user_error` if a function
  /// threw.
  [[nodiscard]] metric_map of_these_rows() const;

  /// The same of the rows of all ranks. Called on all ranks, after the same calls of `add`. If a function threw on any
  /// rank, throws `errc::user_error` on all: the message there, an empty one on the others.
  [[nodiscard]] metric_map of_all_rows(train_context& ctx) const;

 private:
  [[nodiscard]] metric_map quotients(std::span<const std::int64_t> words) const;

  const custom_functions& functions_;
  std::vector<std::string> names_;
  /// For each name the words of two sums.
  std::vector<std::int64_t> words_;
  std::string failure_;
};

/// Calls the user's objective. Throws what it throws as `errc::user_error`.
void compute_gradients(const objective_function& objective, const scored_rows& rows, std::vector<float>& gradients,
                       std::vector<float>& hessians);

} // namespace troupe::boosting
