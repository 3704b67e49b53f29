#include <charlm/device_model.hpp>

#include <algorithm>
#include <array>

namespace charlm {

namespace {

using operand = matrix_product::operand;
using target = matrix_product::target;

/// Where the tensors start in a flat buffer.
struct tensor_offsets {
  std::size_t hidden_weight;
  std::size_t hidden_bias;
  std::size_t output_weight;
  std::size_t output_bias;

  explicit tensor_offsets(const model_shape& shape)
      : hidden_weight{byte_values * shape.embedding},
        hidden_bias{hidden_weight + shape.hidden * shape.inputs()},
        output_weight{hidden_bias + shape.hidden},
        output_bias{output_weight + byte_values * shape.hidden} {}
};

constexpr std::size_t rounded(std::size_t size_bytes) {
  return (size_bytes + 255) / 256 * 256;
}

/// The sizes of the workspace's parts, in the order of the members.
std::array<std::size_t, 7> parts_of(const model_shape& shape, std::size_t samples) {
  auto rows = std::min(samples, device_model::block_samples);
  auto widest = std::max({byte_values * shape.embedding, shape.hidden, byte_values});
  return {rounded(rows * shape.inputs() * sizeof(float)),   rounded(rows * shape.hidden * sizeof(float)),
          rounded(rows * byte_values * sizeof(float)),      rounded(rows * shape.hidden * sizeof(float)),
          rounded(rows * shape.inputs() * sizeof(float)),   rounded(rows * sizeof(double)),
          rounded(chunks_of(rows) * widest * sizeof(float))};
}

} // namespace

std::size_t device_model::workspace_bytes(const model_shape& shape, std::size_t samples) {
  std::size_t result = 0;
  for (auto size : parts_of(shape, samples))
    result += size;
  return result;
}

device_model::device_model(const model_shape& shape, device_maths& maths, std::byte* workspace, std::size_t samples)
    : shape_(shape), maths_(maths) {
  rows_.context = shape.context;
  rows_.embedding = shape.embedding;
  rows_.hidden = shape.hidden;
  auto sizes = parts_of(shape, samples);
  auto next = [&workspace, size = sizes.begin()]() mutable {
    auto* result = workspace;
    workspace += *size++;
    return result;
  };
  inputs_ = reinterpret_cast<float*>(next());
  hidden_ = reinterpret_cast<float*>(next());
  logits_ = reinterpret_cast<float*>(next());
  hidden_gradient_ = reinterpret_cast<float*>(next());
  inputs_gradient_ = reinterpret_cast<float*>(next());
  losses_ = reinterpret_cast<double*>(next());
  chunks_ = next();
}

void device_model::take_block(const std::uint64_t* positions, std::size_t samples) noexcept {
  rows_.positions = positions;
  rows_.samples = samples;
}

void device_model::loss(const float* parameters, const std::uint64_t* positions, std::size_t samples, double* loss) {
  for (std::size_t first = 0; first < samples; first += block_samples) {
    take_block(positions + first, std::min(samples - first, block_samples));
    forward(parameters, loss, false);
  }
}

// Row-major matrices are their transposes in BLAS's column-major order. So matrices with a row for each sample appear
// as X (inputs x samples), H (hidden x samples) and Z (256 x samples), and weights W (outputs x inputs) are transposed,
// too.

void device_model::forward(const float* parameters, double* loss, bool with_gradient) {
  const tensor_offsets at{shape_};
  const auto n = rows_.samples;
  maths_.gather(rows_, parameters, inputs_);
  maths_.multiply({operand::transposed, operand::as_is, shape_.hidden, n, shape_.inputs(),
                   parameters + at.hidden_weight, shape_.inputs(), inputs_, shape_.inputs(), target::overwritten,
                   hidden_, shape_.hidden});
  maths_.add_bias_and_tanh(rows_, parameters + at.hidden_bias, hidden_);
  maths_.multiply({operand::transposed, operand::as_is, byte_values, n, shape_.hidden, parameters + at.output_weight,
                   shape_.hidden, hidden_, shape_.hidden, target::overwritten, logits_, byte_values});
  maths_.softmax(rows_, parameters + at.output_bias, logits_, losses_, with_gradient);
  maths_.add_losses(losses_, n, reinterpret_cast<double*>(chunks_), loss);
}

std::size_t device_model::backward_output(const float* parameters, float* gradient) {
  const tensor_offsets at{shape_};
  const auto n = rows_.samples;
  maths_.add_column_sums(logits_, n, byte_values, reinterpret_cast<float*>(chunks_), gradient + at.output_bias);
  maths_.multiply({operand::as_is, operand::transposed, shape_.hidden, byte_values, n, hidden_, shape_.hidden, logits_,
                   byte_values, target::added_to, gradient + at.output_weight, shape_.hidden});
  maths_.multiply({operand::as_is, operand::as_is, shape_.hidden, n, byte_values, parameters + at.output_weight,
                   shape_.hidden, logits_, byte_values, target::overwritten, hidden_gradient_, shape_.hidden});
  return at.output_weight;
}

std::size_t device_model::backward_hidden(const float* parameters, float* gradient) {
  const tensor_offsets at{shape_};
  const auto n = rows_.samples;
  maths_.multiply_by_tanh_slope(rows_, hidden_, hidden_gradient_);
  maths_.add_column_sums(hidden_gradient_, n, shape_.hidden, reinterpret_cast<float*>(chunks_),
                         gradient + at.hidden_bias);
  maths_.multiply({operand::as_is, operand::transposed, shape_.inputs(), shape_.hidden, n, inputs_, shape_.inputs(),
                   hidden_gradient_, shape_.hidden, target::added_to, gradient + at.hidden_weight, shape_.inputs()});
  maths_.multiply({operand::as_is, operand::as_is, shape_.inputs(), n, shape_.hidden, parameters + at.hidden_weight,
                   shape_.inputs(), hidden_gradient_, shape_.hidden, target::overwritten, inputs_gradient_,
                   shape_.inputs()});
  return at.hidden_weight;
}

void device_model::backward_embedding(float* gradient) {
  maths_.scatter(rows_, inputs_gradient_, reinterpret_cast<float*>(chunks_), gradient);
}

} // namespace charlm
