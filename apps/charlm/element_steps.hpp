#pragma once

#include <charlm/elementary.hpp>

#include <cstddef>
#include <cstdint>

/// What the model's mathematics does with single elements, where it is not a matrix product: the same functions in the
/// kernels of a GPU, and in the tests, which go through the elements in a loop. Each writes what is its own and nothing
/// else, so that the order in which elements are computed does not matter.
namespace charlm {

/// A block of samples. Matrices have a row for each sample, as long as what follows "samples x".
struct sample_rows {
  std::uint64_t samples = 0;
  std::uint64_t context = 0;
  std::uint64_t embedding = 0;
  std::uint64_t hidden = 0;
  /// The text, and where each sample begins in it.
  const std::uint8_t* corpus = nullptr;
  const std::uint64_t* positions = nullptr;

  [[nodiscard]] CHARLM_HOST_DEVICE std::uint64_t inputs() const noexcept { return context * embedding; }
  /// The byte that a sample is to predict.
  [[nodiscard]] CHARLM_HOST_DEVICE std::uint8_t target(std::uint64_t sample) const noexcept {
    return corpus[positions[sample] + context];
  }
};

/// Element `i` of `inputs` (samples x inputs): the embeddings of the sample's bytes, side by side.
CHARLM_HOST_DEVICE inline void gather_element(const sample_rows& rows, const float* embedding, float* inputs,
                                              std::uint64_t i) noexcept {
  const auto sample = i / rows.inputs();
  const auto column = i % rows.inputs();
  const auto byte = rows.corpus[rows.positions[sample] + column / rows.embedding];
  inputs[i] = embedding[byte * rows.embedding + column % rows.embedding];
}

/// Element `i` of `hidden` (samples x hidden), from what its inputs add up to.
CHARLM_HOST_DEVICE inline void tanh_element(const sample_rows& rows, const float* bias, float* hidden,
                                            std::uint64_t i) noexcept {
  hidden[i] = tanh_of(hidden[i] + bias[i % rows.hidden]);
}

/// Element `i` of the gradient of the hidden values, which becomes that of what tanh was taken of.
CHARLM_HOST_DEVICE inline void tanh_slope_element(const float* hidden, float* gradient, std::uint64_t i) noexcept {
  gradient[i] *= 1.0F - hidden[i] * hidden[i];
}

/// Adds column `column` of `x` (samples x columns) to its sum, sample by sample.
CHARLM_HOST_DEVICE inline void column_sum_element(const float* x, std::uint64_t samples, std::uint64_t columns,
                                                  float* sums, std::uint64_t column) noexcept {
  float sum = 0.0F;
  for (std::uint64_t sample = 0; sample < samples; ++sample)
    sum += x[sample * columns + column];
  sums[column] += sum;
}

/// Adds to element `i` of the embeddings' gradient (256 x embedding) what all samples have for its byte, in their
/// order.
CHARLM_HOST_DEVICE inline void scatter_element(const sample_rows& rows, const float* inputs_gradient,
                                               float* embedding_gradient, std::uint64_t i) noexcept {
  const auto byte = i / rows.embedding;
  const auto column = i % rows.embedding;
  float sum = 0.0F;
  for (std::uint64_t sample = 0; sample < rows.samples; ++sample) {
    const auto* context = rows.corpus + rows.positions[sample];
    const auto* row = inputs_gradient + sample * rows.inputs() + column;
    for (std::uint64_t k = 0; k < rows.context; ++k)
      if (context[k] == byte)
        sum += row[k * rows.embedding];
  }
  embedding_gradient[i] += sum;
}

[[nodiscard]] CHARLM_HOST_DEVICE inline float larger(float x, float y) noexcept {
  return x < y ? y : x;
}

/// The loss of a sample from the sum of e^(logit - greatest) over its logits.
[[nodiscard]] CHARLM_HOST_DEVICE inline double cross_entropy_of(float sum, float greatest, float target) noexcept {
  return log_of_positive(sum) + (static_cast<double>(greatest) - static_cast<double>(target));
}

/// The gradient of that loss by one logit, whose e^(logit - greatest) is `power`.
[[nodiscard]] CHARLM_HOST_DEVICE inline float logit_gradient(float power, float sum, bool is_target) noexcept {
  const float probability = power * (1.0F / sum);
  return is_target ? probability - 1.0F : probability;
}

/// `sum` and all losses, in their order.
[[nodiscard]] CHARLM_HOST_DEVICE inline double sum_of_losses(double sum, const double* losses,
                                                             std::uint64_t samples) noexcept {
  for (std::uint64_t i = 0; i < samples; ++i)
    sum += losses[i];
  return sum;
}

/// Of an update of Adam, what is the same for all elements.
struct adam_factors {
  float beta1 = 0;
  float beta2 = 0;
  float rest1 = 0;
  float rest2 = 0;
  float rate = 0;
  float scale2 = 0;
  float epsilon = 0;
};

CHARLM_HOST_DEVICE inline void adam_element(const adam_factors& by, float& parameter, float& m, float& v,
                                            float gradient) noexcept {
  m = by.beta1 * m + by.rest1 * gradient;
  v = by.beta2 * v + by.rest2 * (gradient * gradient);
  parameter -= by.rate * m / (std::sqrt(v * by.scale2) + by.epsilon);
}

} // namespace charlm
