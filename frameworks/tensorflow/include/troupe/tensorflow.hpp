#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/column.hpp>
#include <troupe/error.hpp>
#include <troupe/framework.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/train_context.hpp>
#include <troupe/training/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

/// Trains Keras models that a Python script has exported once (`python/troupe_export.py`), by TensorFlow's C interface.
/// Its library (2.16 or later) is opened at run time.
namespace troupe::tensorflow {

/// The library to use: `asked` if it is not empty, otherwise `$TROUPE_TENSORFLOW`, the system's
/// `libtensorflow_cc.so.2`, or that of the Python package `tensorflow-cpu`. Fails with `errc::unsatisfiable`, saying
/// how to install it.
[[nodiscard]] expected<std::filesystem::path> find_library(const std::filesystem::path& asked = {});

struct framework_options {
  /// The library's path on each host; empty for the usual places.
  std::filesystem::path library = {};
};

/// Prepares TensorFlow in a worker process: deterministic operations in one thread. Its version and what it computes
/// with become part of the numerics fingerprint.
[[nodiscard]] std::shared_ptr<framework> make_framework(framework_options options = {});

/// What a model makes of some samples.
struct evaluation {
  /// Summed over the samples.
  double loss = 0;
  /// The model's outputs, sample after sample.
  std::vector<float> outputs;
};

/// This worker's copy of the model and optimizer that the run trains. All variables are tracked under their names in
/// Keras. Columns of a batch are taken by the names of the model's inputs and target, and converted to their types.
///
///     auto replica = troupe::tensorflow::replica{ctx, "model"};
///     ctx.for_each_step(batches.plan(replica.gradient_elements()), [&](troupe::step& step) {
///       for (auto& shard : step.shards())
///         replica.compute(shard, batches(step, shard));
///       replica.apply(step);
///
/// Used from the training thread.
class replica {
 public:
  /// Loads a SavedModel of `troupe_export.export`, tracks its variables and restores a checkpoint's values. Throws
  /// `exception`: `errc::not_found` and `errc::damaged` for another directory, `errc::mismatch` if a resumed run's
  /// model has changed, `errc::user_error` if the training function was not registered with the framework, and what
  /// `tracked_state::track` throws.
  replica(train_context& ctx, const std::filesystem::path& model);
  ~replica();
  replica(replica&&) noexcept;
  replica& operator=(replica&&) noexcept;

  /// Has `apply` set the optimizer's variable "learning_rate" to the one of the export, times the schedule's factor for
  /// the step. Throws `exception` with `errc::invalid_argument` if there is no such variable.
  void schedule(training::schedule factor);

  /// For `step_plan::gradient_elements`: the trainable variables, each padded to 64 bytes, and changes of the others.
  [[nodiscard]] std::uint64_t gradient_elements() const noexcept;

  /// Adds the gradient of these samples to the shard, and their loss to the metric "loss". Dropout's random numbers are
  /// those of the step and shard. Other variables that training changes, such as a batch norm's averages, take part in
  /// the reduction: the mean of their changes is applied once. Throws `exception`: `errc::not_found` and
  /// `errc::mismatch` for other columns, `errc::user_error` with TensorFlow's text.
  void compute(shard& into, const data::batch& samples);

  /// Reduces, and lets the optimizer take a step with the mean gradient. Throws as `step.all_reduce` does.
  void apply(step& step);

  /// The loss and the outputs with the present variables, without dropout. Throws as `compute` does.
  [[nodiscard]] evaluation evaluate(const data::batch& samples);

  /// The number of outputs for a sample.
  [[nodiscard]] std::size_t outputs() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// The names of an exported model's inputs, in order. Fails as `replica` does for another directory.
[[nodiscard]] expected<std::vector<std::string>> input_names(const std::filesystem::path& model);

/// The columns that an exported model takes for a sample. Fails as `replica` does for another directory.
[[nodiscard]] expected<std::vector<data::column_spec>> input_columns(const std::filesystem::path& model);

/// A predictor by a SavedModel with the variables of a checkpoint of its `replica`. Its outputs are "output_0" and so
/// on. Fails with `errc::mismatch`, naming variables that the checkpoint lacks or has in another shape, and as
/// `replica` does.
[[nodiscard]] expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                                const std::filesystem::path& model,
                                                                const std::filesystem::path& library = {});

} // namespace troupe::tensorflow
