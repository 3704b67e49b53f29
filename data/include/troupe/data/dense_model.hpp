#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>
#include <troupe/metrics.hpp>
#include <troupe/step.hpp>
#include <troupe/tracked_state.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
class train_context;
}

namespace troupe::serialization {
class checkpoint;
}

namespace troupe::data {

struct dense_model_options {
  /// The sizes of the hidden layers; none makes a linear model.
  std::vector<std::uint64_t> hidden = {};
  double learning_rate = 0.01;
  /// The columns to learn from (f32, a number or a vector) and to learn: categorical for classes, f32 for an amount.
  std::string inputs = "inputs";
  std::string label = "label";
};

/// A linear model, or a network of dense layers with ReLU between them, for tables: logistic or softmax regression
/// with the cross-entropy as its loss, or least squares with half the squared error. Trained by Adam (Kingma and Ba,
/// "Adam: a method for stochastic optimization", 2015; beta 0.9 and 0.999, epsilon 1e-8). It computes in f32, on one
/// thread.
///
///     auto model = data::dense_model{*training, ctx.seed(), {.hidden = {32}}};
///     model.track(ctx.state());
///     ctx.for_each_step(batches.plan(model.gradient_elements()), [&](troupe::step& step) {
///       for (auto& shard : step.shards())
///         model.add_gradient(batches(step, shard), shard);
///       model.apply(step.all_reduce(), step.number());
///
/// Used by one thread. Must outlive the training function once it is tracked.
class dense_model {
 public:
  /// Draws the parameters from a seed, such as `ctx.seed()` (He and others, "Delving deep into rectifiers", 2015); the
  /// last layer begins with zeros. Throws `exception` for unsuitable columns.
  dense_model(const data_set& training, std::uint64_t seed, const dense_model_options& options = {});

  /// Tracks parameters and Adam's state: "NAME/layer 0/weights" ({inputs, outputs}), "NAME/layer 0/bias",
  /// "NAME/adam/mean" and "NAME/adam/variance", and the names of the classes in the state's values. A resumed run has
  /// them from its checkpoint afterwards.
  void track(tracked_state& state, std::string_view name = "model");

  /// The parameters that a run tracked under `name`, to predict with. Fails with `errc::not_found` or
  /// `errc::mismatch` if there are none, and as reading does.
  [[nodiscard]] static expected<dense_model> load(const serialization::checkpoint& source,
                                                  dense_model_options options = {}, std::string_view name = "model");

  dense_model(dense_model&&) noexcept = default;
  dense_model(const dense_model&) = delete;
  dense_model& operator=(const dense_model&) = delete;

  [[nodiscard]] std::uint64_t inputs() const noexcept { return layers_.front().inputs; }
  /// The texts of the classes, by code; empty for an amount.
  [[nodiscard]] const std::vector<std::string>& classes() const noexcept { return classes_; }
  /// The number of classes, or 1 for an amount.
  [[nodiscard]] std::uint64_t outputs() const noexcept { return layers_.back().outputs; }
  [[nodiscard]] std::uint64_t gradient_elements() const noexcept { return parameters_.size(); }
  /// Layer by layer: the weights, an input's together, then the biases.
  [[nodiscard]] std::span<float> parameters() noexcept { return parameters_; }

  /// Adds the gradient of these samples to the shard's, and their loss to its metric "loss".
  void add_gradient(const batch& samples, shard& target);

  /// The same into other memory of `gradient_elements()`. Returns the sum of the losses.
  double add_gradient(const batch& samples, std::span<float> gradient);

  /// Changes the parameters by the mean gradient of a step; the first has the number 1.
  void apply(std::span<const float> gradient, std::uint64_t step);

  /// Writes `outputs()` numbers for each sample: the probabilities of the classes, or the amount.
  void predict(const batch& samples, std::span<float> out);

  /// Evaluates a data set over the workers, exactly as `data::evaluate`: "loss", and "accuracy" for classes or "r2"
  /// (the part of the variance that is explained) for an amount. `prefix` comes before these names. Collective.
  [[nodiscard]] metric_map evaluate(train_context& ctx, const data_set& set, std::string_view prefix = "validation_");

 private:
  struct layer {
    std::uint64_t inputs = 0;
    std::uint64_t outputs = 0;
    std::uint64_t first = 0;
  };

  dense_model(const std::vector<std::uint64_t>& sizes, dense_model_options options);

  [[nodiscard]] bool has_classes() const noexcept { return outputs() > 1; }
  [[nodiscard]] std::span<float> weights_of(const layer& x) noexcept;
  [[nodiscard]] std::span<float> bias_of(const layer& x) noexcept;
  /// Computes the layers' values for one sample; those of the last are the result, before any softmax.
  void forward(std::span<const float> input);
  /// Turns the last layer's values into the loss's derivative, and returns the loss.
  double differentiate(double label);
  /// Adds a layer's gradient for this sample, and computes the derivative by its inputs.
  void backward(std::size_t index, std::span<float> gradient);
  [[nodiscard]] std::span<const float> rows(const batch& samples) const;
  [[nodiscard]] double label_of(const batch& samples, std::size_t sample) const;

  dense_model_options options_;
  std::vector<std::string> classes_;
  std::vector<layer> layers_;
  std::vector<float> parameters_;
  std::vector<float> mean_;
  std::vector<float> variance_;
  /// Of one sample, by layer.
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> derivatives_;
};

} // namespace troupe::data
