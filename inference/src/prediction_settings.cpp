#include "prediction_settings.hpp"
#include <nlohmann/json.hpp>

namespace troupe::inference {

nlohmann::json config_of(const prediction_settings& settings) {
  return {{"model_sha256", settings.model_sha256},
          {"preprocessor", settings.preprocessor},
          {"block_rows", settings.block_rows},
          {"config", settings.user_config}};
}

nlohmann::json options_of(const prediction_settings& settings) {
  return {{"checkpoint", settings.checkpoint}, {"options", settings.user_options}};
}

expected<prediction_settings> read_settings(const nlohmann::json& config, const nlohmann::json& options) {
  try {
    prediction_settings result;
    config.at("model_sha256").get_to(result.model_sha256);
    config.at("preprocessor").get_to(result.preprocessor);
    config.at("block_rows").get_to(result.block_rows);
    result.user_config = config.at("config");
    options.at("checkpoint").get_to(result.checkpoint);
    result.user_options = options.at("options");
    return result;
  } catch (const nlohmann::json::exception&) {
    return fail(errc::invalid_argument,
                "a prediction function was not started by a batch_predictor: pass its name to one");
  }
}

} // namespace troupe::inference
