#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/lightgbm.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::lightgbm {

/// Its models are LightGBM's text.
inline constexpr boosting::tree_library this_library{"LightGBM", "lightgbm"};

/// What the workers are told.
struct settings : boosting::settings {
  std::uint64_t bin_rows = 0;
  std::string library;
};

/// Fails with `errc::invalid_argument` for what cannot be meant.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

/// What is not in `boosting::settings`.
[[nodiscard]] boosting::own_settings own_settings_of(const settings& what);

/// Fails with `errc::invalid_argument` for a run that `make_trainer` has not made.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// All parameters as LightGBM takes them, "name=value name=value", for `workers` that train together and a seed.
[[nodiscard]] std::string parameter_text(const nlohmann::json& parameters, std::uint32_t workers, std::uint64_t seed);

/// The bytes that a model of so many rounds has at most; nothing where that is beyond use.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::lightgbm
