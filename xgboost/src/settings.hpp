#pragma once

#include <troupe/error.hpp>
#include <troupe/xgboost.hpp>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace troupe::xgboost {

/// The tensor of a run's state that holds the model: its length in 8 bytes (little-endian), its bytes, zeros.
inline constexpr const char* model_tensor = "xgboost/model";
/// What the state's values say about it.
inline constexpr const char* description_value = "xgboost";

/// What the workers are told.
struct settings {
  nlohmann::json parameters;
  std::vector<std::string> features;
  std::string label;
  std::string weight;
  std::uint64_t model_bytes = 0;
  std::uint64_t checkpoint_every = 0;
  std::chrono::seconds deadline{0};
};

/// Fails with `errc::invalid_argument` for what cannot be meant.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

[[nodiscard]] nlohmann::json config_of(const settings& what, const nlohmann::json& user);
[[nodiscard]] nlohmann::json options_of(const settings& what, const nlohmann::json& user);

/// Fails with `errc::invalid_argument` for a run that `make_trainer` has not made.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// A parameter as XGBoost takes it.
[[nodiscard]] std::string parameter_text(const nlohmann::json& value);

/// The bytes that a model of so many rounds has at most; nothing where neither `max_depth` nor `max_leaves` limits it.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::xgboost
