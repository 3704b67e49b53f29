#include "jobs.hpp"
#include "models.hpp"

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>

#include <string>
#include <utility>

namespace predict {

using namespace troupe;

inference::prediction_job make_trees_job(const inference::prediction_request& request, model_kind kind) {
  auto model = kind == model_kind::lightgbm
                   ? load_lightgbm_model(request.model, request.options.at("lightgbm_library").get<std::string>())
                   : load_xgboost_model(request.model);
  auto how = data::csv_options{};
  how.missing = data::missing_values::marked;
  for (const auto& each : model.inputs)
    how.columns.push_back({each.name, data::csv_type::f32, {}, {}});
  auto file = request.options.at("file").get<std::string>();
  return {value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how)))), std::move(model.predictor)};
}

} // namespace predict
