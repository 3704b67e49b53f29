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

/// Models are stored as UBJSON.
inline constexpr boosting::tree_library this_library{"XGBoost", "xgboost"};

/// The settings sent to the workers.
struct settings : boosting::settings {
  std::chrono::seconds deadline{0};
  /// `cluster_config::trusted_network`.
  bool trusted_network = false;
  std::string library;
};

/// Fails with `errc::invalid_argument` for an invalid configuration.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

/// The settings that are not in `boosting::settings`.
[[nodiscard]] boosting::own_settings own_settings_of(const settings& what);

/// Fails with `errc::invalid_argument` for a run that was not made by `make_trainer`.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// A parameter in XGBoost's format.
[[nodiscard]] std::string parameter_text(const nlohmann::json& value);

/// The maximum size of a model after this many rounds; `nullopt` if neither `max_depth` nor `max_leaves` limits it.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::xgboost
