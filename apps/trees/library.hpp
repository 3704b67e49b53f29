#pragma once

#include <troupe/app.hpp>
#include <troupe/boosting.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/trainer.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trees {

/// The settings of a run, independent of the library.
struct request {
  nlohmann::json parameters = nlohmann::json::object();
  std::vector<std::string> features;
  std::string label;
  std::uint64_t rounds = 30;
  std::uint64_t checkpoint_every = 10;
  /// The path of LightGBM's library; ignored by XGBoost.
  std::filesystem::path lightgbm_library = {};
  troupe::trainer_config trainer = {};
};

/// The functions that the program needs from a library of trees.
struct library {
  /// One of the app's functions.
  troupe::function train;
  std::function<troupe::trainer(const troupe::app&, const troupe::function&, const request&)> make_trainer;
  std::function<troupe::expected<void>(const troupe::serialization::checkpoint&, const std::filesystem::path&)>
      export_model;
};

[[nodiscard]] library xgboost_library(troupe::boosting::make_training_sets make);
[[nodiscard]] library lightgbm_library(troupe::boosting::make_training_sets make);

/// The `training_config` of either library.
template <class Config>
[[nodiscard]] Config config_of(const request& asked) {
  Config result;
  result.parameters = asked.parameters;
  result.features = asked.features;
  result.label = asked.label;
  result.rounds = asked.rounds;
  result.checkpoint_every = asked.checkpoint_every;
  result.trainer = asked.trainer;
  return result;
}

} // namespace trees
