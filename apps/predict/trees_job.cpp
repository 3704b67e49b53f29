#include "jobs.hpp"

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/lightgbm.hpp>

#include <string>
#include <utility>

namespace predict {

using namespace troupe;

namespace {

trees_model load_lightgbm_model(const inference::prediction_request& request) {
  auto library = request.options.at("lightgbm_library").get<std::string>();
  return {value_or_throw(lightgbm::load_predictor(request.model, library)),
          value_or_throw(lightgbm::feature_names(request.model))};
}

} // namespace

inference::prediction_job make_trees_job(const inference::prediction_request& request, model_kind kind) {
  auto [model, features] =
      kind == model_kind::lightgbm ? load_lightgbm_model(request) : load_xgboost_model(request.model);
  auto how = data::csv_options{};
  how.missing = data::missing_values::marked;
  for (const auto& name : features)
    how.columns.push_back({name, data::csv_type::f32, {}, {}});
  auto file = request.options.at("file").get<std::string>();
  return {value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how)))), std::move(model)};
}

} // namespace predict
