#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::inference {

/// What the driver tells its workers beside the user's own configuration.
struct prediction_settings {
  /// Of the model's state: part of the run's identity, as is what follows.
  std::string model_sha256;
  std::string preprocessor;
  std::uint64_t block_rows = 0;
  nlohmann::json user_config;
  /// Where the model lies; may change.
  std::string checkpoint;
  nlohmann::json user_options;
};

[[nodiscard]] nlohmann::json config_of(const prediction_settings& settings);
[[nodiscard]] nlohmann::json options_of(const prediction_settings& settings);

/// Fails with `errc::invalid_argument` for a run that no `batch_predictor` has started.
[[nodiscard]] expected<prediction_settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

} // namespace troupe::inference
