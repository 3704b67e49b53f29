#include "jobs.hpp"

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/idx.hpp>
#include <troupe/data/npy.hpp>
#include <troupe/onnxruntime.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace predict {

using namespace troupe;

namespace {

/// The columns of a table that the model takes: those of its inputs, or all.
std::vector<data::csv_column> columns_for(const onnxruntime::model_description& model) {
  if (model.inputs.size() < 2)
    return {};
  std::vector<data::csv_column> result;
  for (const auto& each : model.inputs)
    result.push_back({each.name, data::csv_type::f64, {}, {}});
  return result;
}

std::vector<data::column> read_rows(const std::filesystem::path& file, const onnxruntime::model_description& model) {
  const auto name = model.inputs.empty() ? std::string{"input"} : model.inputs.front().name;
  if (file.extension() == ".npy")
    return {value_or_throw(data::read_npy(file, name))};
  if (file.extension() == ".csv")
    return value_or_throw(data::read_csv(file, {.columns = columns_for(model)}));
  return {value_or_throw(data::read_idx(file, name))};
}

} // namespace

inference::prediction_job make_onnx_job(const inference::prediction_request& request) {
  const auto library = request.options.at("onnxruntime_library").get<std::string>();
  const auto model = value_or_throw(onnxruntime::describe_model(request.model, library));
  const auto file = std::filesystem::path{request.options.at("file").get<std::string>()};
  return {value_or_throw(data::make_table(read_rows(file, model))),
          value_or_throw(onnxruntime::load_predictor(request.model, library))};
}

} // namespace predict
