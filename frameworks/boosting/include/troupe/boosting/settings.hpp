#pragma once

#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/trainer.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// The configuration that all libraries of boosted trees share.
namespace troupe::boosting {

/// A library of boosted trees.
struct tree_library {
  /// The name in messages: "XGBoost".
  const char* name;
  /// The key in configurations and in the state's values, and the prefix of the model's tensor: "xgboost".
  const char* key;

  /// The tensor of a run's state that holds the model, in the format of `inference::put_model`.
  [[nodiscard]] std::string model_tensor() const { return std::string{key} + "/model"; }
};

/// The settings sent to the workers. Each library derives its own from this.
struct settings {
  nlohmann::json parameters;
  std::vector<std::string> features;
  std::string label;
  std::string weight;
  std::uint64_t checkpoint_every = 0;
  std::uint64_t model_bytes = 0;
};

/// A library's additional settings, as JSON.
struct own_settings {
  /// Part of the run's identity.
  nlohmann::json config = nlohmann::json::object();
  /// May change when a run resumes.
  nlohmann::json options = nlohmann::json::object();
};

/// The fields common to every library's `training_config`.
template <class Config>
[[nodiscard]] settings shared_settings(const Config& config) {
  return {config.parameters, config.features, config.label, config.weight, config.checkpoint_every, config.model_bytes};
}

/// The error for an invalid field of `training_config`: "rounds is 0".
[[nodiscard]] inline tl::unexpected<error> refuse(const std::string& what) {
  return fail(errc::invalid_argument, "training_config." + what);
}

/// Checks the shared fields, and sets `model_bytes` to `most` if it is 0; without `most` the error names the parameters
/// that would limit the size ("max_depth and max_leaves"). Fails with `errc::invalid_argument`.
[[nodiscard]] expected<void> complete(settings& what, std::uint64_t rounds, std::optional<std::uint64_t> most,
                                      const char* limits);

/// The value of a parameter with several names, given as a number or as text.
[[nodiscard]] double number_of(const nlohmann::json& parameters, std::initializer_list<const char*> names,
                               double otherwise);

/// The memory for a model with this many trees, a power of two; `nullopt` if it is uselessly large.
[[nodiscard]] std::optional<std::uint64_t> model_capacity(double trees, double bytes_per_tree);

/// The `trainer_config::config` and `trainer_config::options` sent to the workers; `user` is the user's own.
[[nodiscard]] nlohmann::json config_of(const tree_library& library, const settings& what, const own_settings& own,
                                       const nlohmann::json& user);
[[nodiscard]] nlohmann::json options_of(const tree_library& library, const settings& what, const own_settings& own,
                                        const nlohmann::json& user);

/// Reads them back; `read_own` receives the library's part of both, and may throw JSON exceptions. Fails with
/// `errc::invalid_argument` for a run that was not made by `make_trainer`.
[[nodiscard]] expected<void>
read_settings(const tree_library& library, const nlohmann::json& config, const nlohmann::json& options,
              settings& result,
              const std::function<void(const nlohmann::json& config, const nlohmann::json& options)>& read_own);

/// A trainer for this number of rounds. A resumed run keeps its initial memory for the model.
[[nodiscard]] trainer make_trainer(const app& program, const function& train, const tree_library& library, settings how,
                                   const own_settings& own, std::uint64_t rounds, trainer_config all);

} // namespace troupe::boosting
