#pragma once

#include <troupe/data/data_set.hpp>
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
};

/// Makes the data sets, the same in every worker. Throws `failure` for what cannot be read.
using make_training_sets = std::function<training_sets(const train_context& ctx)>;

/// The `config` that the user has given in `training_config::trainer`.
[[nodiscard]] const nlohmann::json& user_config(const train_context& ctx);
/// The same of its `options`.
[[nodiscard]] const nlohmann::json& user_options(const train_context& ctx);

} // namespace troupe::boosting
