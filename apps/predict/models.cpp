#include "models.hpp"

#include <troupe/inference/table_predictor.hpp>
#include <troupe/lightgbm.hpp>
#include <troupe/onnxruntime.hpp>
#include <troupe/tensorflow.hpp>
#include <troupe/xgboost.hpp>

#include <fmt/format.h>

#include <utility>

namespace predict {

using namespace troupe;

namespace {

std::vector<data::column_spec> feature_columns(const std::vector<std::string>& names) {
  std::vector<data::column_spec> result;
  for (const auto& each : names)
    result.push_back({each, dtype::f32, {}, {}});
  return result;
}

loaded_model load_onnx_model(const serialization::checkpoint& source, const std::filesystem::path& library) {
  const auto description = value_or_throw(onnxruntime::describe_model(source, library));
  loaded_model result;
  for (const auto& each : description.inputs) {
    auto& column = result.inputs.emplace_back(data::column_spec{each.name, each.type.value_or(dtype::f32), {}, {}});
    for (auto dimension : each.row_shape) {
      if (dimension < 0)
        throw exception{errc::mismatch, fmt::format("input '{}' of the ONNX model has a free dimension besides that of "
                                                    "the rows: export it with a fixed one",
                                                    each.name)};
      column.shape.push_back(static_cast<std::uint64_t>(dimension));
    }
  }
  result.predictor = value_or_throw(onnxruntime::load_predictor(source, library));
  return result;
}

loaded_model load_keras_model(const serialization::checkpoint& source, const std::filesystem::path& model) {
  if (model.empty())
    throw exception{errc::invalid_argument,
                    "the checkpoint is of a Keras model: name the exported model with --keras-model DIRECTORY"};
  auto inputs = value_or_throw(tensorflow::input_columns(model));
  return {value_or_throw(tensorflow::load_predictor(source, model)), std::move(inputs)};
}

} // namespace

loaded_model load_xgboost_model(const serialization::checkpoint& source) {
  return {value_or_throw(xgboost::load_predictor(source)),
          feature_columns(value_or_throw(xgboost::feature_names(source)))};
}

loaded_model load_lightgbm_model(const serialization::checkpoint& source, const std::filesystem::path& library) {
  return {value_or_throw(lightgbm::load_predictor(source, library)),
          feature_columns(value_or_throw(lightgbm::feature_names(source)))};
}

loaded_model load_model(const serialization::checkpoint& source, const model_files& files) {
  switch (value_or_throw(kind_of(source))) {
  case model_kind::charlm:
    return load_charlm_model(source);
  case model_kind::xgboost:
    return load_xgboost_model(source);
  case model_kind::lightgbm:
    return load_lightgbm_model(source, files.lightgbm_library);
  case model_kind::onnx:
    return load_onnx_model(source, files.onnxruntime_library);
  case model_kind::keras:
    return load_keras_model(source, files.keras_model);
  case model_kind::table:
    return {value_or_throw(inference::load_table_predictor(source)), value_or_throw(inference::table_columns(source))};
  case model_kind::mnist:
    break;
  }
  throw exception{errc::unsatisfiable, fmt::format("{} is a model of LibTorch, which this program is built without",
                                                   source.directory().string())};
}

} // namespace predict
