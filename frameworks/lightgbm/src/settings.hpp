#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/lightgbm.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::lightgbm {

/// Models are stored as LightGBM's text.
inline constexpr boosting::tree_library this_library{"LightGBM", "lightgbm"};

/// The settings sent to the workers.
struct settings : boosting::settings {
  std::uint64_t bin_rows = 0;
  std::string library;
};

/// Fails with `errc::invalid_argument` for an invalid configuration.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

/// The settings that are not in `boosting::settings`.
[[nodiscard]] boosting::own_settings own_settings_of(const settings& what);

/// Fails with `errc::invalid_argument` for a run that was not made by `make_trainer`.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// All parameters in LightGBM's format, "name=value name=value", for `workers` workers and a seed.
[[nodiscard]] std::string parameter_text(const nlohmann::json& parameters, std::uint32_t workers, std::uint64_t seed);

/// The maximum size of a model after this many rounds; `nullopt` if it is uselessly large.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::lightgbm
