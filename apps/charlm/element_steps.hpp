#pragma once

#include <charlm/elementary.hpp>

#include <cstddef>
#include <cstdint>

/// The elementwise operations of the model. GPU kernels and the tests' loops use the same functions. Each function
/// writes only its own element, so the order of elements does not matter.
namespace charlm {

/// A block of samples. Matrices described as "samples x n" have a row of n elements for each sample.
struct sample_rows {
  std::uint64_t samples = 0;
  std::uint64_t context = 0;
  std::uint64_t embedding = 0;
  std::uint64_t hidden = 0;
  /// The text, and where each sample starts in it.
  const std::uint8_t* corpus = nullptr;
  const std::uint64_t* positions = nullptr;

  [[nodiscard]] CHARLM_HOST_DEVICE std::uint64_t inputs() const noexcept { return context * embedding; }
  /// The byte that a sample predicts.
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

/// Element `i` of `hidden` (samples x hidden), which holds the sum of its inputs before.
CHARLM_HOST_DEVICE inline void tanh_element(const sample_rows& rows, const float* bias, float* hidden,
                                            std::uint64_t i) noexcept {
  hidden[i] = tanh_of(hidden[i] + bias[i % rows.hidden]);
}

/// Element `i` of the gradient: turns the gradient of tanh's value into that of its argument.
CHARLM_HOST_DEVICE inline void tanh_slope_element(const float* hidden, float* gradient, std::uint64_t i) noexcept {
  gradient[i] *= 1.0F - hidden[i] * hidden[i];
}

/// The number of samples in a chunk. Sums over samples have two stages: the sums of chunks, then the sum over all
/// chunks, both in a fixed order. That way many threads can work on a sum without affecting its bits.
inline constexpr std::uint64_t chunk_samples = 64;

[[nodiscard]] CHARLM_HOST_DEVICE constexpr std::uint64_t chunks_of(std::uint64_t samples) noexcept {
  return (samples + chunk_samples - 1) / chunk_samples;
}

[[nodiscard]] CHARLM_HOST_DEVICE inline std::uint64_t end_of_chunk(std::uint64_t chunk,
                                                                   std::uint64_t samples) noexcept {
  const auto last = (chunk + 1) * chunk_samples;
  return last < samples ? last : samples;
}

/// Element `i` of `chunks` (chunks x columns): the sum of a column of `x` (samples x columns) over one chunk.
template <class T>
CHARLM_HOST_DEVICE void column_chunk_element(const T* x, std::uint64_t samples, std::uint64_t columns, T* chunks,
                                             std::uint64_t i) noexcept {
  const auto chunk = i / columns;
  T sum = 0;
  for (auto sample = chunk * chunk_samples; sample < end_of_chunk(chunk, samples); ++sample)
    sum += x[sample * columns + i % columns];
  chunks[i] = sum;
}

/// Element `i` of `chunks` (chunks x 256 x embedding): the gradient of a byte's embedding over one chunk's samples.
CHARLM_HOST_DEVICE inline void scatter_chunk_element(const sample_rows& rows, const float* inputs_gradient,
                                                     float* chunks, std::uint64_t i) noexcept {
  const auto column = i % rows.embedding;
  const auto byte = i / rows.embedding % 256;
  const auto chunk = i / rows.embedding / 256;
  float sum = 0.0F;
  for (auto sample = chunk * chunk_samples; sample < end_of_chunk(chunk, rows.samples); ++sample) {
    const auto* context = rows.corpus + rows.positions[sample];
    const auto* row = inputs_gradient + sample * rows.inputs() + column;
    for (std::uint64_t k = 0; k < rows.context; ++k)
      if (context[k] == byte)
        sum += row[k * rows.embedding];
  }
  chunks[i] = sum;
}

/// Adds all chunks' sums of element `i` (of `elements`) to that element of the result.
template <class T>
CHARLM_HOST_DEVICE void chunk_sum_element(const T* chunks, std::uint64_t count, std::uint64_t elements, T* sums,
                                          std::uint64_t i) noexcept {
  T sum = 0;
  for (std::uint64_t chunk = 0; chunk < count; ++chunk)
    sum += chunks[chunk * elements + i];
  sums[i] += sum;
}

[[nodiscard]] CHARLM_HOST_DEVICE inline float larger(float x, float y) noexcept {
  return x < y ? y : x;
}

/// The loss of a sample from the sum of e^(logit - greatest) over its logits.
[[nodiscard]] CHARLM_HOST_DEVICE inline double cross_entropy_of(float sum, float greatest, float target) noexcept {
  return log_of_positive(sum) + (static_cast<double>(greatest) - static_cast<double>(target));
}

/// The derivative of that loss by one logit, whose e^(logit - greatest) is `power`.
[[nodiscard]] CHARLM_HOST_DEVICE inline float logit_gradient(float power, float sum, bool is_target) noexcept {
  const float probability = power * (1.0F / sum);
  return is_target ? probability - 1.0F : probability;
}

/// The factors of an update of Adam that are the same for all elements.
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
