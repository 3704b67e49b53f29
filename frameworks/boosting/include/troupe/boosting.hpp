#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/train_context.hpp>

#include <functional>
#include <nlohmann/json.hpp>
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

/// The `config` that the user passed in `training_config::trainer`.
[[nodiscard]] const nlohmann::json& user_config(const train_context& ctx);
/// The `options` that the user passed there.
[[nodiscard]] const nlohmann::json& user_options(const train_context& ctx);

} // namespace troupe::boosting
