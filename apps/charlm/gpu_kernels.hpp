#pragma once

#include <charlm/element_steps.hpp>

#include <cstdint>

/// The kernels of the model's mathematics. Read by g++ as C++20 and by nvcc as C++17, and free of CUDA's own headers.
/// Pointers are addresses of the device, `stream` is a `cudaStream_t`, and what is returned is a `cudaError_t`, of the
/// launch alone.
namespace charlm::kernels {

/// `gather_element` for all of `inputs`.
[[nodiscard]] int gather(const sample_rows& rows, const float* embedding, float* inputs, void* stream) noexcept;
/// `tanh_element` for all of `hidden`.
[[nodiscard]] int add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden, void* stream) noexcept;
/// Of each row of `logits` (samples x 256): adds the bias, puts the cross-entropy of the sample's target into `losses`,
/// and, `with_gradient`, its gradient into the place of the logits. Greatest and sum are those of halves: lanes 0 to
/// 127 with 128 to 255, and so on.
[[nodiscard]] int softmax(const sample_rows& rows, const float* bias, float* logits, double* losses, bool with_gradient,
                          void* stream) noexcept;
/// Adds the sum of `losses` to `*sum`, by chunks.
[[nodiscard]] int add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum,
                             void* stream) noexcept;
[[nodiscard]] int multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient,
                                         void* stream) noexcept;
/// Adds the sums of the columns of `x` (samples x columns) to `sums`, by chunks.
[[nodiscard]] int add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks,
                                  float* sums, void* stream) noexcept;
/// Adds to the embeddings' gradient (256 x embedding) what the samples have for their bytes, by chunks.
[[nodiscard]] int scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks,
                          float* embedding_gradient, void* stream) noexcept;
[[nodiscard]] int adam(const adam_factors& by, float* parameters, float* m, float* v, const float* gradient,
                       std::uint64_t elements, void* stream) noexcept;

/// What the runtime of CUDA calls an error.
[[nodiscard]] const char* describe(int error) noexcept;

} // namespace charlm::kernels
