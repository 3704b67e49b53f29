#pragma once

#include <troupe/app.hpp>
#include <troupe/boosting.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/trainer.hpp>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Gradient-boosted trees by LightGBM over the workers of a run, without a training loop to write: a data set,
/// parameters and a number of rounds. LightGBM's library (`lib_lightgbm.so`, 4.x) is opened at run time.
namespace troupe::lightgbm {

/// The library to use: `asked` if it is not empty, otherwise `$TROUPE_LIGHTGBM`, the system's `lib_lightgbm.so`, or
/// that of the Python package `lightgbm` in `$VIRTUAL_ENV`, in the user's or the system's site-packages. Fails with
/// `errc::unsatisfiable`, listing what was tried and how to install it.
[[nodiscard]] expected<std::filesystem::path> find_library(const std::filesystem::path& asked = {});

/// Each worker fetches evaluation sets completely, since LightGBM's metrics are not distributed.
using boosting::training_sets;

using boosting::custom_functions;
using boosting::make_training_sets;
using boosting::metric_term;
using boosting::scored_rows;
using boosting::user_config;
using boosting::user_options;

/// A training function that trains with LightGBM, and with the user's own objective and metrics, if any. With an
/// objective, `objective` is not among the parameters, scores start at 0, and predictions are scores.
[[nodiscard]] function training_function(std::string name, make_training_sets make, custom_functions custom = {});

struct training_config {
  /// LightGBM's own, by name: {"objective": "binary", "num_leaves": 31}. Part of the run's identity. Defaults:
  /// `num_threads` is 1 in each worker, `force_col_wise` and `deterministic` are on, `verbosity` is -1. `tree_learner`
  /// must be "data" or "voting". `seed` is the run's.
  nlohmann::json parameters = nlohmann::json::object();
  /// Columns of numbers or of vectors of numbers, in this order. NaN, and the code -1 of a categorical column, is a
  /// missing value.
  std::vector<std::string> features;
  /// Columns of single numbers.
  std::string label;
  std::string weight = {};
  std::uint64_t rounds = 10;
  /// Interval of checkpoints in rounds; 0 takes one after the last round only. A run that loses a worker resumes from
  /// the latest, and yields the same bits. Part of the run's identity, since a new booster starts at each checkpoint.
  std::uint64_t checkpoint_every = 10;
  /// The bin boundaries are found in at most this many rows, spread evenly over the training set and fetched by every
  /// worker, so that they do not depend on the distribution of rows. Part of the run's identity.
  std::uint64_t bin_rows = 200'000;
  /// The memory for the model in checkpoints, at least 4 KiB; 0 derives it from `rounds` and `num_leaves`.
  std::uint64_t model_bytes = 0;
  /// Passed to `find_library` in each worker.
  std::filesystem::path library = {};
  /// Workers, nodes, names. `run.steps` is set from `rounds`. `config` and `options` are the user's: `make` reads them
  /// with `user_config(ctx)` and `user_options(ctx)`.
  trainer_config trainer = {};
};

/// A trainer for `train`, which `training_function` made. Each round is a step; evaluation metrics are reported by
/// name. Throws `exception` for an invalid configuration.
[[nodiscard]] trainer make_trainer(const app& program, const function& train, const training_config& config);

/// A predictor with the model of a checkpoint. It takes the columns on which it was trained, and returns what
/// LightGBM's `predict` does: one output, "prediction", or one per class, "prediction_0" and so on. Fails with
/// `errc::not_found` for any other checkpoint, and as `find_library` does.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                                const std::filesystem::path& library = {});

/// The columns on which a checkpoint's model was trained. Fails with `errc::not_found` for any other checkpoint.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source);

/// Writes the model as LightGBM's own text, which `lightgbm.Booster(model_file=...)` reads in Python. Needs no library.
/// Fails as `feature_names` does, with `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                                          serialization::existing_file existing = serialization::existing_file::keep);

} // namespace troupe::lightgbm
