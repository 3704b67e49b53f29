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

/// Gradient-boosted trees by XGBoost over the workers of a run, without a training loop to write: a data set,
/// parameters and a number of rounds. XGBoost's library (`libxgboost.so`: 1.7, or 2.1 and later; 2.0 for one worker) is
/// opened at run time.
namespace troupe::xgboost {

/// The library to use: `asked` if it is not empty, otherwise `$TROUPE_XGBOOST`, the system's `libxgboost.so`, or that
/// of the Python package `xgboost` in `$VIRTUAL_ENV`, in the user's or the system's site-packages. Fails with
/// `errc::unsatisfiable`, saying how to install it.
[[nodiscard]] expected<std::filesystem::path> find_library(const std::filesystem::path& asked = {});

/// Each worker fetches its own part of evaluation sets as well. The training set is evaluated as "train".
using boosting::training_sets;

using boosting::custom_functions;
using boosting::make_training_sets;
using boosting::metric_term;
using boosting::scored_rows;
using boosting::user_config;
using boosting::user_options;

/// A training function that trains with XGBoost, and with the user's own objective and metrics, if any. With an
/// objective `base_score` is 0.5 unless it is set.
[[nodiscard]] function training_function(std::string name, make_training_sets make, custom_functions custom = {});

struct training_config {
  /// XGBoost's own, by name: {"objective": "binary:logistic", "max_depth": 4}. Part of the run's identity. Defaults:
  /// `tree_method` is "hist", and `nthread` is 1 in each worker. `seed` is the run's.
  nlohmann::json parameters = nlohmann::json::object();
  /// Columns of numbers or of vectors of numbers, in this order. NaN, and the code -1 of a categorical column, is a
  /// missing value.
  std::vector<std::string> features;
  /// Columns of single numbers.
  std::string label;
  std::string weight = {};
  std::uint64_t rounds = 10;
  /// Interval of checkpoints in rounds; 0 takes one after the last round only. A run that loses a worker resumes from
  /// the latest, and yields the same bits. Part of the run's identity, since XGBoost's random draws are seeded there.
  std::uint64_t checkpoint_every = 10;
  /// The memory for the model in checkpoints, at least 4 KiB; 0 derives it from `rounds` and `max_depth`, and is an
  /// error if nothing limits the size.
  std::uint64_t model_bytes = 0;
  /// Deadline for XGBoost's workers to connect to each other, and of one of their exchanges.
  std::chrono::seconds deadline{300};
  /// Passed to `find_library` in each worker.
  std::filesystem::path library = {};
  /// Workers, nodes, names. `run.steps` is set from `rounds`. `config` and `options` are the user's: `make` reads them
  /// with `user_config(ctx)` and `user_options(ctx)`.
  trainer_config trainer = {};
};

/// A trainer for `train`, which `training_function` made. Each round is a step; evaluation metrics are reported by
/// name. Throws `exception` for an invalid configuration.
[[nodiscard]] trainer make_trainer(const app& program, const function& train, const training_config& config);

/// A predictor with the model of a checkpoint. It takes the columns on which it was trained, and returns what XGBoost's
/// `predict` does: one output, "prediction", or one per class, "prediction_0" and so on. Fails with `errc::not_found`
/// for any other checkpoint, and as `find_library` does.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                                const std::filesystem::path& library = {});

/// The columns on which a checkpoint's model was trained. Fails with `errc::not_found` for any other checkpoint.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source);

/// Writes the model as XGBoost's own file, .ubj or .json by the path's extension, which
/// `xgboost.Booster(model_file=...)` reads in Python. Only .json needs the library. Fails as `load_predictor` does,
/// with `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                                          serialization::existing_file existing = serialization::existing_file::keep,
                                          const std::filesystem::path& library = {});

} // namespace troupe::xgboost
