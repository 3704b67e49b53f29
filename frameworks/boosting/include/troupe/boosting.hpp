#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/train_context.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// The user interface that `troupe::xgboost` and `troupe::lightgbm` share; both re-export it.
namespace troupe::boosting {

/// The data of a run. Each worker fetches its own part of the training samples, one range per rank.
struct training_sets {
  data::data_set_ptr training;
  /// Evaluated after every round under their names: "validation" yields the metric "validation-rmse".
  std::vector<std::pair<std::string, data::data_set_ptr>> evaluations = {};
  /// Fitted on the training set over all workers and stored in the checkpoint. It transforms all sets, and the
  /// predictor applies it again. `training_config::features` are its output columns; the label is not transformed. One
  /// of Troupe's own kinds.
  data::preprocessor_ptr preprocessor = {};
};

/// Makes the data sets, equal in every worker. Throws `exception` for data that cannot be read. If it takes minutes, it
/// should call `ctx.heartbeat()` regularly. The codes of categorical columns may differ between the sets, since texts
/// are compared.
using make_training_sets = std::function<training_sets(train_context& ctx)>;

/// The rows of one worker's part of a data set, with what the model says about them. Valid during the call.
struct scored_rows {
  std::uint64_t rows = 0;
  /// Numbers per row: 1, or the number of classes.
  std::uint64_t outputs = 1;
  /// Row after row.
  std::span<const float> scores;
  /// One per row.
  std::span<const float> labels;
  /// One per row; empty if the run has no weights.
  std::span<const float> weights = {};

  /// The weight of a row, 1 without weights.
  [[nodiscard]] float weight(std::uint64_t row) const { return weights.empty() ? 1.0f : weights[row]; }
};

/// Computes the gradient and the second derivative of the loss by each score, in the order of `scores`; the scores are
/// those before the objective's transformation. It must multiply by the row's weight. The result for a row depends on
/// nothing but that row, so that the model does not depend on the distribution of rows.
using objective_function =
    std::function<void(const scored_rows& rows, std::span<float> gradients, std::span<float> hessians)>;

/// What a row contributes to a metric, which is the sum of all rows' `sum` divided by that of their `weight`.
struct metric_term {
  double sum = 0;
  double weight = 0;
};

/// Computes the terms of each row from the model's predictions; on entry they are 0 and the row's weight. Troupe adds
/// them over all rows of all workers without rounding, so that the metric depends on the predictions alone, not on the
/// number of workers.
using metric_function = std::function<void(const scored_rows& rows, std::span<metric_term> terms)>;

/// A user's own objective and metrics. They run in every worker process, in the training thread. What they throw ends
/// the run.
struct custom_functions {
  /// Replaces the gradients of the library's objective, whose name in the parameters still determines how scores become
  /// predictions, and which metric is the default.
  objective_function objective = {};
  /// By name: "mape" of the evaluation set "validation" is reported as "validation-mape".
  std::map<std::string, metric_function> metrics = {};
};

/// The `config` that the user passed in `training_config::trainer`.
[[nodiscard]] const nlohmann::json& user_config(const train_context& ctx);
/// The `options` that the user passed there.
[[nodiscard]] const nlohmann::json& user_options(const train_context& ctx);

} // namespace troupe::boosting
