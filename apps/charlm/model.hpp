#pragma once

#include <charlm/aligned_buffer.hpp>

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace charlm {

inline constexpr std::size_t byte_values = 256;

/// The sizes of the network. Each is at least 1. `embedding` and `hidden` are multiples of 16, so that every tensor and
/// every row starts on a 64-byte boundary without padding.
struct model_shape {
  /// Bytes that the model sees before the one it predicts.
  std::size_t context = 16;
  /// Elements of a byte's embedding.
  std::size_t embedding = 32;
  /// Units of the tanh layer.
  std::size_t hidden = 192;

  [[nodiscard]] std::size_t inputs() const noexcept { return context * embedding; }
  [[nodiscard]] std::size_t parameter_elements() const noexcept {
    return byte_values * embedding + hidden * inputs() + hidden + byte_values * hidden + byte_values;
  }

  bool operator==(const model_shape&) const = default;
};

/// Fails with `errc::invalid_argument` for sizes that `model_shape` does not allow, and for more than 2^28 parameters.
[[nodiscard]] troupe::expected<void> validate(const model_shape& shape);

/// A tensor inside a flat buffer; the last dimension is the fastest.
struct tensor_place {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::size_t first = 0;
  std::size_t elements = 0;
};

/// The tensors of a flat buffer with the layout of the parameters (also a gradient, or a moment of Adam): "embedding"
/// (256 x embedding), "hidden.weight" (hidden x inputs), "hidden.bias", "output.weight" (256 x hidden), "output.bias".
/// They fill the buffer without gaps. Weights are stored as outputs x inputs, as in PyTorch's `Linear`. `prefix` is
/// prepended to every name.
[[nodiscard]] std::vector<tensor_place> places_of(const model_shape& shape, std::string_view prefix = "");

/// Such a tensor with its values, in host memory or on a GPU.
template <class Values>
struct named_tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  Values values;
};

template <class Values>
[[nodiscard]] std::vector<named_tensor<Values>> tensors_of(const model_shape& shape, Values flat,
                                                           std::string_view prefix = "") {
  std::vector<named_tensor<Values>> result;
  for (auto& place : places_of(shape, prefix))
    result.push_back({std::move(place.name), std::move(place.shape), flat.subspan(place.first, place.elements)});
  return result;
}

/// Sets Eigen to fixed cache sizes and one thread. By default Eigen splits matrix products by the machine's cache
/// sizes, and the split determines the last bits. Every `model` calls it. A program that uses Eigen elsewhere must call
/// it first. Idempotent.
void fix_arithmetic();

struct sample_block;

/// A language model over bytes: the embeddings of the last `context` bytes, a tanh layer, a softmax over the next byte
/// (Bengio et al., "A Neural Probabilistic Language Model", JMLR 2003, without the direct connections).
///
/// Its results depend only on parameters, corpus and positions, bit for bit, and not on addresses, the C library or
/// cache sizes. Use each object from one thread at a time, even its `const` members, because they share a workspace.
class model {
 public:
  /// All parameters are zero. Throws `troupe::exception` for a shape that `validate` rejects.
  explicit model(const model_shape& shape);
  ~model();

  model(model&&) noexcept;
  model& operator=(model&&) noexcept;

  /// Fills the parameters with `standard_normal(i)`, where i is the index in the flat buffer, scaled by 1/sqrt(inputs)
  /// for the hidden weights, 1/sqrt(hidden) for the output weights, and one for the embeddings. Biases become zero
  /// without a call.
  void initialise(const std::function<float(std::uint64_t)>& standard_normal);

  [[nodiscard]] const model_shape& shape() const noexcept { return shape_; }

  /// The flat buffer, on a 64-byte boundary. Its address does not change, even if the model is moved.
  [[nodiscard]] std::span<float> parameters() noexcept { return parameters_; }
  [[nodiscard]] std::span<const float> parameters() const noexcept { return parameters_; }

  /// The parameters, tensor by tensor.
  [[nodiscard]] std::vector<named_tensor<std::span<float>>> tensors(std::string_view prefix = "") {
    return tensors_of(shape_, parameters(), prefix);
  }

  /// Returns the sum (not the mean) over `positions` of the cross-entropy in nats, where position p predicts `corpus[p
  /// + context]` from the `context` bytes before it. Adds the gradient of that sum to `gradient`, which has the layout
  /// of the parameters and starts on a 64-byte boundary. The sum follows the order of the positions, so splitting them
  /// into two calls may change the last bits. Throws `troupe::exception` for a position outside the corpus or a
  /// gradient of another size or alignment.
  double forward_backward(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions,
                          std::span<float> gradient);

  /// Returns the same sum, bit for bit, without computing a gradient.
  [[nodiscard]] double loss(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) const;

  /// Computes the logits (log-probabilities up to a constant) of the byte after `context`, which has exactly
  /// `shape().context` bytes.
  void predict(std::span<const std::uint8_t> context, std::span<float, byte_values> logits) const;

 private:
  struct workspace;

  void check_positions(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) const;
  void check_gradient(std::span<const float> gradient) const;
  void forward(const sample_block& samples) const;
  void backward(const sample_block& samples, std::span<float> gradient) const;

  model_shape shape_;
  aligned_buffer parameters_;
  std::unique_ptr<workspace> workspace_;
};

} // namespace charlm
