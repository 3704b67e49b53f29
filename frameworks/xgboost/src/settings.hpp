#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/error.hpp>
#include <troupe/xgboost.hpp>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace troupe::xgboost {

/// Its models are UBJSON.
inline constexpr boosting::tree_library this_library{"XGBoost", "xgboost"};

/// What the workers are told.
struct settings : boosting::settings {
  std::chrono::seconds deadline{0};
};

/// Fails with `errc::invalid_argument` for what cannot be meant.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

/// What is not in `boosting::settings`.
[[nodiscard]] boosting::own_settings own_settings_of(const settings& what);

/// Fails with `errc::invalid_argument` for a run that `make_trainer` has not made.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// A parameter as XGBoost takes it.
[[nodiscard]] std::string parameter_text(const nlohmann::json& value);

/// The bytes that a model of so many rounds has at most; nothing where neither `max_depth` nor `max_leaves` limits it.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::xgboost
