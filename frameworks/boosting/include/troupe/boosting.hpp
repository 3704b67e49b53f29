#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/train_context.hpp>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

/// What users of `troupe::xgboost` and `troupe::lightgbm` write alike. Both name it as their own.
namespace troupe::boosting {

/// What a run trains on. Each worker fetches its own part of the training samples, a range for each rank.
struct training_sets {
  data::data_set_ptr training;
  /// Evaluated after every round, each under its name: "validation" gives the metric "validation-rmse".
  std::vector<std::pair<std::string, data::data_set_ptr>> evaluations = {};
  /// Fitted on the training set over all workers, and kept in the checkpoint: all sets are learned from as it makes
  /// them, and the predictor applies it again. `training_config::features` are the columns that it gives, the label
  /// stays as it is. One of Troupe's own kinds.
  data::preprocessor_ptr preprocessor = {};
};

/// Makes the data sets, the same in every worker. Throws `exception` for what cannot be read. What takes minutes says
/// `ctx.heartbeat()` now and then. The codes of categorical columns may differ between the sets: texts are compared.
using make_training_sets = std::function<training_sets(train_context& ctx)>;

/// The `config` that the user has given in `training_config::trainer`.
[[nodiscard]] const nlohmann::json& user_config(const train_context& ctx);
/// The same of its `options`.
[[nodiscard]] const nlohmann::json& user_options(const train_context& ctx);

} // namespace troupe::boosting
