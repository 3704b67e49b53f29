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
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::inference {

/// What a worker makes its predictor and its data set of.
struct prediction_request {
  /// The checkpoint to predict with; the same content on all workers.
  const serialization::checkpoint& model;
  /// The trainer's `config` and `options`, as the program gave them.
  const nlohmann::json& config;
  const nlohmann::json& options;
};

struct prediction_job {
  /// The rows to predict for, the same on all workers.
  data::data_set_ptr rows;
  predictor_ptr model;
};

/// A function of an app's that predicts: `make` is called once in every worker process. It throws `exception` for what
/// cannot be read.
[[nodiscard]] named_function prediction_function(std::string name,
                                                 std::function<prediction_job(const prediction_request&)> make);

struct batch_prediction_config {
  /// Read by every worker: it has to lie under this path on each host.
  std::filesystem::path checkpoint;
  /// A preprocessor that the checkpoint has under this name goes in front of the predictor; empty for none.
  std::string preprocessor = {};
  /// A name that ends in ".npy" (f32 [rows, outputs]) or ".csv" (a header, and the shortest digits that read back as
  /// the same f32). Written by the driver. Empty writes none; `prediction_result::run` names the checkpoint that holds
  /// them.
  std::filesystem::path output = {};
  serialization::existing_file existing = serialization::existing_file::keep;
  /// How many rows are predicted between two points at which all workers have agreed; cut into `scaling.shards` parts.
  std::uint64_t block_rows = 8192;
  /// Workers, nodes, names. The predictions are the run's tracked state, in every worker's memory: 4 bytes a number.
  /// `run.steps` and `load_checkpoint` are not used.
  trainer_config trainer = {};
};

struct prediction_result {
  run_result run;
  /// How many rows were written; 0 where the run was stopped before its end.
  std::uint64_t rows = 0;
};

/// Predicts for all rows of a data set, over the workers of a run: exactly one prediction for each row, in the rows'
/// order, whatever dies on the way, and the same bytes on any number of workers.
class batch_predictor {
 public:
  /// `function` is the name of one that `prediction_function` has made. Throws `exception` for a name that the app does
  /// not have, for an output of no known kind or one that is there already, and for a checkpoint that cannot be read.
  batch_predictor(const app& program, std::string function, batch_prediction_config config);
  ~batch_predictor();
  batch_predictor(const batch_predictor&) = delete;
  batch_predictor& operator=(const batch_predictor&) = delete;

  /// Called with the number of rows that are done, and of all.
  void set_progress(std::function<void(std::uint64_t done, std::uint64_t all)> function);

  /// As `trainer::set_callbacks`.
  void set_callbacks(run_callbacks callbacks);

  /// Predicts, and writes the output. A run that was stopped goes on where its latest checkpoint stands; one that is
  /// done writes the output again. Fails with `errc::not_found`, `errc::damaged` and as writing does, and with the
  /// run's own error where that failed.
  [[nodiscard]] expected<prediction_result> run();

  /// Asks for the end of the run. From any thread.
  void stop();

  /// What the program's `main` is to return, as `trainer::exit_code`.
  [[nodiscard]] int exit_code() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::inference
