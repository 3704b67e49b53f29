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

/// How a run of boosted trees is configured, as far as all frameworks agree on it.
namespace troupe::boosting {

/// A library of boosted trees.
struct tree_library {
  /// In texts: "XGBoost".
  const char* name;
  /// In configurations, in the state's values and in front of the model's tensor: "xgboost".
  const char* key;

  /// The tensor of a run's state that holds the model, as `inference::put_model` writes it.
  [[nodiscard]] std::string model_tensor() const { return std::string{key} + "/model"; }
};

/// What the workers are told. A library derives its own from it.
struct settings {
  nlohmann::json parameters;
  std::vector<std::string> features;
  std::string label;
  std::string weight;
  std::uint64_t checkpoint_every = 0;
  std::uint64_t model_bytes = 0;
};

/// What a library has beside that, as JSON.
struct own_settings {
  /// Part of the run's identity.
  nlohmann::json config = nlohmann::json::object();
  /// May change when a run goes on.
  nlohmann::json options = nlohmann::json::object();
};

/// The fields that every library's `training_config` has.
template <class Config>
[[nodiscard]] settings shared_settings(const Config& config) {
  return {config.parameters, config.features, config.label, config.weight, config.checkpoint_every, config.model_bytes};
}

/// The error for a field of `training_config` that cannot be meant: "rounds is 0".
[[nodiscard]] inline tl::unexpected<error> refuse(const std::string& what) {
  return fail(errc::invalid_argument, "training_config." + what);
}

/// Looks at the shared fields, and sets the room for the model where it was not given: `most` bytes; without them the
/// error names the parameters that would limit it ("max_depth and max_leaves"). Fails with `errc::invalid_argument`.
[[nodiscard]] expected<void> complete(settings& what, std::uint64_t rounds, std::optional<std::uint64_t> most,
                                      const char* limits);

/// The number that one of several names of a parameter has, as a number or as text.
[[nodiscard]] double number_of(const nlohmann::json& parameters, std::initializer_list<const char*> names,
                               double otherwise);

/// The room for a model of so many trees, a power of two; nothing where that is beyond use.
[[nodiscard]] std::optional<std::uint64_t> room_of(double trees, double bytes_per_tree);

/// What `trainer_config::config` and `trainer_config::options` are for the workers: `user` is the user's own.
[[nodiscard]] nlohmann::json config_of(const tree_library& library, const settings& what, const own_settings& own,
                                       const nlohmann::json& user);
[[nodiscard]] nlohmann::json options_of(const tree_library& library, const settings& what, const own_settings& own,
                                        const nlohmann::json& user);

/// Reads that back; `read_own` is given the library's part of both, and may throw JSON's exceptions. Fails with
/// `errc::invalid_argument` for a run that `make_trainer` has not made.
[[nodiscard]] expected<void>
read_settings(const tree_library& library, const nlohmann::json& config, const nlohmann::json& options,
              settings& result,
              const std::function<void(const nlohmann::json& config, const nlohmann::json& options)>& read_own);

/// A trainer for so many rounds. A run that goes on keeps the room for the model that it was begun with.
[[nodiscard]] trainer make_trainer(const app& program, std::string function, const tree_library& library, settings how,
                                   const own_settings& own, std::uint64_t rounds, trainer_config all);

} // namespace troupe::boosting
