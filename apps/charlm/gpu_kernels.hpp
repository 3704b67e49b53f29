#pragma once

#include <charlm/element_steps.hpp>

#include <cstdint>

/// The model's kernels. g++ compiles this header as C++20 and nvcc as C++17; it includes no CUDA headers. Pointers are
/// device addresses, and `stream` is a `cudaStream_t`. The results are `cudaError_t` values of the launches.
namespace charlm::kernels {

/// `gather_element` for all of `inputs`.
[[nodiscard]] int gather(const sample_rows& rows, const float* embedding, float* inputs, void* stream) noexcept;
/// `tanh_element` for all of `hidden`.
[[nodiscard]] int add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden, void* stream) noexcept;
/// For each row of `logits` (samples x 256): adds the bias, stores the cross-entropy of the sample's target in `losses`
/// and, if `with_gradient`, replaces the logits by its gradient. Maximum and sum are trees over halves: lanes 0 to 127
/// with 128 to 255, and so on.
[[nodiscard]] int softmax(const sample_rows& rows, const float* bias, float* logits, double* losses, bool with_gradient,
                          void* stream) noexcept;
/// Adds the sum of `losses` to `*sum`, in chunks.
[[nodiscard]] int add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum,
                             void* stream) noexcept;
[[nodiscard]] int multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient,
                                         void* stream) noexcept;
/// Adds the column sums of `x` (samples x columns) to `sums`, in chunks.
[[nodiscard]] int add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks,
                                  float* sums, void* stream) noexcept;
/// Adds the samples' contributions to the gradient of the embeddings (256 x embedding), in chunks.
[[nodiscard]] int scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks,
                          float* embedding_gradient, void* stream) noexcept;
[[nodiscard]] int adam(const adam_factors& by, float* parameters, float* m, float* v, const float* gradient,
                       std::uint64_t elements, void* stream) noexcept;

/// The CUDA runtime's description of an error.
[[nodiscard]] const char* describe(int error) noexcept;

} // namespace charlm::kernels
