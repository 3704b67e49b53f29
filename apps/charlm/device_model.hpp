#pragma once

#include <charlm/element_steps.hpp>
#include <charlm/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace charlm {

/// A product of matrices as BLAS has it, column after column: C (m x n) = op(A) op(B), or C plus that. `lda`, `ldb` and
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

/// What the model on a GPU is made of: cuBLAS and kernels there (`gpu_maths`), loops over the same element functions in
/// tests. All pointers are addresses of the device; operations run in the order of the calls. `chunks` is room for the
/// sums of chunks (see element_steps.hpp). They throw `troupe::exception` where they cannot be begun. What they do is
/// said in gpu_kernels.hpp and element_steps.hpp.
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

/// The network of `model`, in memory of a device: the same mathematics with other sums inside of its products, so that
/// the bits are not those of the host, but those of every other GPU of the same kind. Parameters and gradients are laid
/// out as there.
class device_model {
 public:
  /// Samples that go through the network at a time. It decides the last bits, so it is a constant.
  static constexpr std::size_t block_samples = 2048;

  /// The device memory that passes need for themselves, on a 256-byte boundary, if no call has more samples.
  [[nodiscard]] static std::size_t workspace_bytes(const model_shape& shape, std::size_t samples);

  device_model(const model_shape& shape, device_maths& maths, std::byte* workspace, std::size_t samples);

  /// The text as bytes.
  void set_corpus(const std::uint8_t* corpus) noexcept { rows_.corpus = corpus; }

  /// As `model::forward_backward` does: adds to `gradient`, and the summed loss to `*loss`. Layer by layer from the
  /// last, `completed(first, count)` is told of the elements of the gradient that this call will not touch again, once
  /// what writes them has begun.
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
  /// Each returns where its part of the gradient begins, which ends where that of the call before begins.
  std::size_t backward_output(const float* parameters, float* gradient);
  std::size_t backward_hidden(const float* parameters, float* gradient);
  void backward_embedding(float* gradient);

  model_shape shape_;
  device_maths& maths_;
  sample_rows rows_;
  /// samples x inputs; samples x hidden; samples x 256; and their gradients.
  float* inputs_;
  float* hidden_;
  float* logits_;
  float* hidden_gradient_;
  float* inputs_gradient_;
  double* losses_;
  /// Of sums over samples, one at a time.
  std::byte* chunks_;
};

} // namespace charlm
