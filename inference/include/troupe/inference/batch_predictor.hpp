#pragma once

#include <troupe/app.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/result.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/trainer.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace troupe::inference {

/// The input from which a worker makes its predictor and its data set.
struct prediction_request {
  /// The checkpoint to predict with; the same content on all workers.
  const serialization::checkpoint& model;
  /// The trainer's `config` and `options` as passed by the program.
  const nlohmann::json& config;
  const nlohmann::json& options;
};

struct prediction_job {
  /// The rows to predict for, the same on all workers.
  data::data_set_ptr rows;
  predictor_ptr model;
};

/// A training function that predicts: `make` is called once in every worker process. It throws `exception` for input
/// that cannot be read.
[[nodiscard]] function prediction_function(std::string name,
                                           std::function<prediction_job(const prediction_request&)> make);

struct batch_prediction_config {
  /// Every worker reads it: it must exist under this path on each host.
  std::filesystem::path checkpoint;
  /// The name of a preprocessor in the checkpoint to apply before the predictor; empty for none.
  std::string preprocessor = {};
  /// A path that ends in ".npy" (f32 [rows, outputs]) or ".csv" (a header, and the shortest digits that read back as
  /// the same f32). Written by the driver. If empty, none is written; `prediction_result::run` names the checkpoint
  /// that holds the predictions.
  std::filesystem::path output = {};
  serialization::existing_file existing = serialization::existing_file::keep;
  /// How many rows are predicted between two points at which all workers synchronise; cut into `scaling.shards` parts.
  std::uint64_t block_rows = 8192;
  /// Workers, nodes, names. Predictions of another model under the same name are moved aside. The predictions are the
  /// run's tracked state and take 4 bytes per number in every worker. `run.steps` and `load_checkpoint` are ignored.
  trainer_config trainer = {};
};

struct prediction_result {
  run_result run;
  /// How many rows were written; 0 if the run was stopped before its end.
  std::uint64_t rows = 0;
};

/// Predicts for all rows of a data set, over the workers of a run: exactly one prediction for each row, in row order,
/// whatever fails on the way, and the same bytes for any number of workers.
class batch_predictor {
 public:
  /// `predict` is a `prediction_function` of the app's. Throws `exception` for one that the app does not have, for an
  /// output that has an unknown format or already exists, and for a checkpoint that cannot be read.
  batch_predictor(const app& program, const function& predict, batch_prediction_config config);
  ~batch_predictor();
  batch_predictor(const batch_predictor&) = delete;
  batch_predictor& operator=(const batch_predictor&) = delete;

  /// `function` is called with the number of predicted rows and of all rows.
  void set_progress(std::function<void(std::uint64_t done, std::uint64_t all)> function);

  /// As `trainer::set_callbacks`.
  void set_callbacks(run_callbacks callbacks);

  /// Predicts, and writes the output. A stopped run resumes from its latest checkpoint; a completed run writes the
  /// output again. Fails with `errc::not_found`, `errc::damaged` and as writing does, and with the run's own error if
  /// it failed.
  [[nodiscard]] expected<prediction_result> run();

  /// Asks the run to stop. Thread-safe.
  void stop();

  /// The return value for the program's `main`, as `trainer::exit_code`.
  [[nodiscard]] int exit_code() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::inference
