#include "models.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace predict {

using namespace troupe;

expected<model_kind> kind_of(const serialization::checkpoint& source) {
  if (source.find("xgboost/model"))
    return model_kind::xgboost;
  if (source.find("lightgbm/model"))
    return model_kind::lightgbm;
  if (source.find("onnx/model"))
    return model_kind::onnx;
  if (source.find("layers.4.weight"))
    return model_kind::mnist;
  if (source.find("model/layer 0/weights"))
    return model_kind::table;
  auto values = nlohmann::json::parse(source.content().values_json, nullptr, false);
  if (values.is_object() && values.contains("tensorflow model"))
    return model_kind::keras;
  if (values.is_object() && values.contains("gpt"))
    return fail(errc::invalid_argument,
                fmt::format("{} is a checkpoint of gpt, which generates text: use gpt --sample-from {}",
                            source.directory().string(), source.directory().string()));
  return model_kind::charlm;
}

} // namespace predict
