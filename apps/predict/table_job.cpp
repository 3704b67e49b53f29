#include "jobs.hpp"

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/inference/table_predictor.hpp>

#include <string>
#include <utility>

namespace predict {

using namespace troupe;

inference::prediction_job make_table_job(const inference::prediction_request& request) {
  auto how = data::csv_options{};
  how.missing = data::missing_values::marked;
  // The file has categories of its own, which the model compares by their texts.
  for (const auto& each : value_or_throw(inference::table_columns(request.model)))
    if (each.categories == nullptr)
      how.columns.push_back(
          {each.name, data::csv_type::f64, {}, {}, {"NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"}});
    else
      how.columns.push_back({each.name, data::csv_type::categorical, {}, {}});
  const auto file = request.options.at("file").get<std::string>();
  return {value_or_throw(data::make_table(value_or_throw(data::read_csv(file, how)))),
          value_or_throw(inference::load_table_predictor(request.model))};
}

} // namespace predict
