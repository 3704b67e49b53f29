#pragma once

#include <troupe/app.hpp>
#include <troupe/boosting.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/trainer.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Gradient-boosted trees by XGBoost over the workers of a run: a data set, parameters and a number of rounds, and no
/// loop to write.
namespace troupe::xgboost {

/// Of evaluation sets, too, each worker fetches its own part. The training set is evaluated as "train".
using boosting::training_sets;

using boosting::make_training_sets;
using boosting::user_config;
using boosting::user_options;

/// A function of an app's that trains by XGBoost.
[[nodiscard]] named_function training_function(std::string name, make_training_sets make);

struct training_config {
  /// XGBoost's own, by name: {"objective": "binary:logistic", "max_depth": 4}. Part of the run's identity. Where they
  /// are not named: `tree_method` is "hist" and `nthread` 1 in each worker. `seed` is the run's.
  nlohmann::json parameters = nlohmann::json::object();
  /// Columns of numbers, or of vectors of them, in this order. NaN, and the code -1 of a categorical column, is a
  /// missing value.
  std::vector<std::string> features;
  /// Columns of single numbers.
  std::string label;
  std::string weight = {};
  std::uint64_t rounds = 10;
  /// Takes a checkpoint after so many rounds, and after the last; 0 for that one alone. A run that loses a worker goes
  /// on from there, and comes to the same bits. Part of the run's identity: XGBoost's random draws are seeded there.
  std::uint64_t checkpoint_every = 10;
  /// The room that checkpoints have for the model, 4 KiB at least; 0 takes what `rounds` rounds of `max_depth` can
  /// need, and asks for a number where nothing limits that.
  std::uint64_t model_bytes = 0;
  /// Limit for XGBoost's workers to find each other, and of one of their exchanges.
  std::chrono::seconds deadline{300};
  /// Workers, nodes, names. `run.steps` is taken from `rounds`. `config` and `options` are the user's: `make` reads
  /// them with `user_config(ctx)` and `user_options(ctx)`.
  trainer_config trainer = {};
};

/// A trainer for a function that `training_function` has made. Each round is a step; evaluation metrics are reported by
/// name. Throws `exception` for what cannot be meant.
[[nodiscard]] trainer make_trainer(const app& program, std::string function, const training_config& config);

/// Predicts with the model of a checkpoint. It takes the columns that it was trained on, and gives what XGBoost's
/// `predict` does: one output, "prediction", or one for each class, "prediction_0" and so on. Fails with
/// `errc::not_found` for a checkpoint of another kind.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source);

/// The columns that a checkpoint's model was trained on. Fails with `errc::not_found` for a checkpoint of another kind.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source);

/// Writes the model as XGBoost's own file, by the name's end .ubj or .json: `xgboost.Booster(model_file=...)` in Python
/// reads it. Fails as `load_predictor` does, with `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                                          serialization::existing_file existing = serialization::existing_file::keep);

} // namespace troupe::xgboost
