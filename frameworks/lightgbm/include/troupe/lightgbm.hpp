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

/// Gradient-boosted trees by LightGBM over the workers of a run: a data set, parameters and a number of rounds, and no
/// loop to write. LightGBM's library (`lib_lightgbm.so`, 4.x) is opened at run time.
namespace troupe::lightgbm {

/// The library that is used where `asked` is empty: what `$TROUPE_LIGHTGBM` names, else the system's
/// `lib_lightgbm.so`, else that of the Python package `lightgbm` in `$VIRTUAL_ENV`, in the user's or the system's
/// site-packages. Otherwise `asked`. Fails with `errc::unsatisfiable`, with what was tried and how to get it.
[[nodiscard]] expected<std::filesystem::path> find_library(const std::filesystem::path& asked = {});

/// Evaluation sets are fetched whole by each worker: LightGBM's metrics know no other workers.
using boosting::training_sets;

using boosting::make_training_sets;
using boosting::user_config;
using boosting::user_options;

/// A function of an app's that trains by LightGBM.
[[nodiscard]] named_function training_function(std::string name, make_training_sets make);

struct training_config {
  /// LightGBM's own, by name: {"objective": "binary", "num_leaves": 31}. Part of the run's identity. Where they are not
  /// named: `num_threads` is 1 in each worker, `force_col_wise` and `deterministic` are on, `verbosity` is -1.
  /// `tree_learner` is "data" or "voting". `seed` is the run's.
  nlohmann::json parameters = nlohmann::json::object();
  /// Columns of numbers, or of vectors of them, in this order. NaN, and the code -1 of a categorical column, is a
  /// missing value.
  std::vector<std::string> features;
  /// Columns of single numbers.
  std::string label;
  std::string weight = {};
  std::uint64_t rounds = 10;
  /// Takes a checkpoint after so many rounds, and after the last; 0 for that one alone. A run that loses a worker goes
  /// on from there, and comes to the same bits. Part of the run's identity: a new booster goes on there.
  std::uint64_t checkpoint_every = 10;
  /// The cuts between bins are found in so many rows at most, spread evenly over the training set, which every worker
  /// fetches: so they do not depend on how rows are dealt. Part of the run's identity.
  std::uint64_t bin_rows = 200'000;
  /// The room that checkpoints have for the model, 4 KiB at least; 0 takes what `rounds` rounds of `num_leaves` can
  /// need.
  std::uint64_t model_bytes = 0;
  /// As `find_library` takes it, in each worker.
  std::filesystem::path library = {};
  /// Workers, nodes, names. `run.steps` is taken from `rounds`. `config` and `options` are the user's: `make` reads
  /// them with `user_config(ctx)` and `user_options(ctx)`.
  trainer_config trainer = {};
};

/// A trainer for a function that `training_function` has made. Each round is a step; evaluation metrics are reported by
/// name. Throws `exception` for what cannot be meant.
[[nodiscard]] trainer make_trainer(const app& program, std::string function, const training_config& config);

/// Predicts with the model of a checkpoint. It takes the columns that it was trained on, and gives what LightGBM's
/// `predict` does: one output, "prediction", or one for each class, "prediction_0" and so on. Fails with
/// `errc::not_found` for a checkpoint of another kind, and as `find_library` does.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                                const std::filesystem::path& library = {});

/// The columns that a checkpoint's model was trained on. Fails with `errc::not_found` for a checkpoint of another kind.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source);

/// Writes the model as LightGBM's own text: `lightgbm.Booster(model_file=...)` in Python reads it. Needs no library.
/// Fails as `feature_names` does, with `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                                          serialization::existing_file existing = serialization::existing_file::keep);

} // namespace troupe::lightgbm
