#pragma once

#include <troupe/lightgbm.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::lightgbm {

/// In checkpoints: the model's length (8 bytes, little-endian), its text, zeros.
inline constexpr const char* model_tensor = "lightgbm/model";
/// What the state's values say about it.
inline constexpr const char* description_value = "lightgbm";

/// What the workers are told.
struct settings {
  nlohmann::json parameters;
  std::vector<std::string> features;
  std::string label;
  std::string weight;
  std::uint64_t checkpoint_every = 0;
  std::uint64_t bin_rows = 0;
  std::uint64_t model_bytes = 0;
  std::string library;
};

/// Fails with `errc::invalid_argument` for what cannot be meant.
[[nodiscard]] expected<settings> settings_of(const training_config& config);

[[nodiscard]] nlohmann::json config_of(const settings& what, const nlohmann::json& user);
[[nodiscard]] nlohmann::json options_of(const settings& what, const nlohmann::json& user);

/// Fails with `errc::invalid_argument` for a run that `make_trainer` has not made.
[[nodiscard]] expected<settings> read_settings(const nlohmann::json& config, const nlohmann::json& options);

/// All parameters as LightGBM takes them, "name=value name=value", for `workers` that train together and a seed.
[[nodiscard]] std::string parameter_text(const nlohmann::json& parameters, std::uint32_t workers, std::uint64_t seed);

/// The bytes that a model of so many rounds has at most; nothing where that is beyond use.
[[nodiscard]] std::optional<std::uint64_t> most_model_bytes(const nlohmann::json& parameters, std::uint64_t rounds);

} // namespace troupe::lightgbm
