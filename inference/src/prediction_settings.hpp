#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::inference {

/// What the driver sends to its workers besides the user's own configuration.
struct prediction_settings {
  /// Of the model's state. This and the following fields are part of the run's identity.
  std::string model_sha256;
  std::string preprocessor;
  std::uint64_t block_rows = 0;
  nlohmann::json user_config;
  /// Path of the model; may change when the run resumes.
  std::string checkpoint;
  nlohmann::json user_options;
};

[[nodiscard]] nlohmann::json config_of(const prediction_settings& settings);
[[nodiscard]] nlohmann::json options_of(const prediction_settings& settings);

/// Fails with `errc::invalid_argument` for a run that was not started by a `batch_predictor`.
[[nodiscard]] expected<prediction_settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

} // namespace troupe::inference
