#pragma once

#include <charlm/element_steps.hpp>
#include <charlm/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace charlm {

/// A matrix product in BLAS's column-major notation: C (m x n) = op(A) op(B), or C += op(A) op(B). `lda`, `ldb` and
/// `ldc` are the distances between columns.
struct matrix_product {
  enum class operand : std::uint8_t { as_is, transposed };
  enum class target : std::uint8_t { overwritten, added_to };

  operand op_a = operand::as_is;
  operand op_b = operand::as_is;
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  const float* a = nullptr;
  std::size_t lda = 0;
  const float* b = nullptr;
  std::size_t ldb = 0;
  target into = target::overwritten;
  float* c = nullptr;
  std::size_t ldc = 0;
};

/// The operations that `device_model` is composed of: cuBLAS and kernels on a GPU (`gpu_maths`), loops over the same
/// element functions in tests. All pointers are device addresses. Operations run in the order of the calls. `chunks` is
/// room for the sums of chunks (see element_steps.hpp). An operation that cannot be started throws `troupe::exception`.
/// gpu_kernels.hpp and element_steps.hpp document the operations.
class device_maths {
 public:
  virtual ~device_maths() = default;

  virtual void multiply(const matrix_product& what) = 0;
  virtual void gather(const sample_rows& rows, const float* embedding, float* inputs) = 0;
  virtual void add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden) = 0;
  virtual void softmax(const sample_rows& rows, const float* bias, float* logits, double* losses,
                       bool with_gradient) = 0;
  virtual void add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum) = 0;
  virtual void multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient) = 0;
  virtual void add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks,
                               float* sums) = 0;
  virtual void scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks,
                       float* embedding_gradient) = 0;
  virtual void adam(const adam_factors& by, float* parameters, float* m, float* v, const float* gradient,
                    std::uint64_t elements) = 0;
};

/// The network of `model` in device memory. The mathematics and the layout of parameters and gradients are the same,
/// but the order of sums inside matrix products differs: results equal those of other GPUs of the same kind, not the
/// host's.
class device_model {
 public:
  /// Samples that go through the network at a time. A constant, because it determines the last bits.
  static constexpr std::size_t block_samples = 2048;

  /// The size of the workspace for calls of at most `samples` samples. It must start on a 256-byte boundary.
  [[nodiscard]] static std::size_t workspace_bytes(const model_shape& shape, std::size_t samples);

  device_model(const model_shape& shape, device_maths& maths, std::byte* workspace, std::size_t samples);

  /// The text as bytes.
  void set_corpus(const std::uint8_t* corpus) noexcept { rows_.corpus = corpus; }

  /// As `model::forward_backward`, but adds the summed loss to `*loss`. Calls `completed(first, count)` layer by layer,
  /// from the last, for the gradient elements that later operations of this call do not touch. The operations that
  /// write those elements have been started by then.
  template <class Completed>
  void forward_backward(const float* parameters, const std::uint64_t* positions, std::size_t samples, float* gradient,
                        double* loss, Completed completed) {
    if (samples == 0)
      return completed(0, shape_.parameter_elements());
    for (std::size_t first = 0; first < samples; first += block_samples) {
      take_block(positions + first, std::min(samples - first, block_samples));
      forward(parameters, loss, true);
      auto is_last = first + block_samples >= samples;
      auto hidden = backward_output(parameters, gradient);
      if (is_last)
        completed(hidden, shape_.parameter_elements() - hidden);
      auto inputs = backward_hidden(parameters, gradient);
      if (is_last)
        completed(inputs, hidden - inputs);
      backward_embedding(gradient);
      if (is_last)
        completed(0, inputs);
    }
  }

  /// Adds the summed loss to `*loss`.
  void loss(const float* parameters, const std::uint64_t* positions, std::size_t samples, double* loss);

 private:
  void take_block(const std::uint64_t* positions, std::size_t samples) noexcept;
  void forward(const float* parameters, double* loss, bool with_gradient);
  /// Each returns where its part of the gradient starts; the part ends where that of the previous call starts.
  std::size_t backward_output(const float* parameters, float* gradient);
  std::size_t backward_hidden(const float* parameters, float* gradient);
  void backward_embedding(float* gradient);

  model_shape shape_;
  device_maths& maths_;
  sample_rows rows_;
  /// Activations (samples x inputs, samples x hidden, samples x 256) and their gradients.
  float* inputs_;
  float* hidden_;
  float* logits_;
  float* hidden_gradient_;
  float* inputs_gradient_;
  double* losses_;
  /// Scratch space for one sum over samples at a time.
  std::byte* chunks_;
};

} // namespace charlm
