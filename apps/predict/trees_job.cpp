#include "jobs.hpp"

#include <troupe/data/csv.hpp>
#include <troupe/xgboost.hpp>

#include <string>
#include <utility>

namespace predict {

using namespace troupe;

inference::prediction_job make_trees_job(const inference::prediction_request& request) {
  auto model = value_or_throw(xgboost::load_predictor(request.model));
  auto how = data::csv_options{};
  how.missing = data::missing_values::marked;
  for (const auto& name : value_or_throw(xgboost::feature_names(request.model)))
    how.columns.push_back({name, data::csv_type::f32, {}, {}});
  auto file = request.options.at("file").get<std::string>();
  return {value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how)))), std::move(model)};
}

} // namespace predict
