#include <charlm/model.hpp>

#include <charlm/elementary.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <Eigen/Core>
#include <mutex>

namespace charlm {

namespace {

/// Samples per matrix product. A constant, because the split into blocks determines the last bits of every sum.
constexpr std::size_t block_samples = 64;

} // namespace

/// At most `block_samples` samples.
struct sample_block {
  std::span<const std::uint8_t> corpus;
  std::span<const std::uint64_t> positions;

  /// The rows that are computed, rounded up to full vectors, so that the last samples take the same code path.
  [[nodiscard]] std::size_t rows() const {
    return (positions.size() + aligned_floats - 1) / aligned_floats * aligned_floats;
  }
};

namespace {

using strided_matrix = Eigen::Map<Eigen::MatrixXf, Eigen::Unaligned, Eigen::OuterStride<>>;
using strided_const_matrix = Eigen::Map<const Eigen::MatrixXf, Eigen::Unaligned, Eigen::OuterStride<>>;

strided_matrix matrix(float* data, std::size_t rows, std::size_t columns, std::size_t stride) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
          Eigen::OuterStride<>{static_cast<Eigen::Index>(stride)}};
}

strided_const_matrix matrix(const float* data, std::size_t rows, std::size_t columns, std::size_t stride) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
          Eigen::OuterStride<>{static_cast<Eigen::Index>(stride)}};
}

/// Where the tensors lie in a flat buffer.
template <class Float>
struct tensor_pointers {
  Float* embedding;
  Float* hidden_weight;
  Float* hidden_bias;
  Float* output_weight;
  Float* output_bias;

  tensor_pointers(const model_shape& shape, Float* flat)
      : embedding{flat},
        hidden_weight{embedding + byte_values * shape.embedding},
        hidden_bias{hidden_weight + shape.hidden * shape.inputs()},
        output_weight{hidden_bias + shape.hidden},
        output_bias{output_weight + byte_values * shape.hidden} {}
};

/// The sum of `n` floats, a multiple of 16, in a fixed order: sixteen lanes, then pairs of lanes.
float sum_of(const float* x, std::size_t n) {
  std::array<float, aligned_floats> lanes{};
  for (std::size_t i = 0; i < n; i += aligned_floats)
    for (std::size_t lane = 0; lane < aligned_floats; ++lane)
      lanes[lane] += x[i + lane];
  for (auto half = aligned_floats / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane)
      lanes[lane] += lanes[lane + half];
  return lanes[0];
}

/// x = tanh(x + bias) for the first `n` rows of each column.
void add_bias_and_tanh(float* x, const float* bias, std::size_t columns, std::size_t n) {
  for (std::size_t j = 0; j < columns; ++j, x += block_samples)
    for (std::size_t i = 0; i < n; ++i)
      x[i] = tanh_of(x[i] + bias[j]);
}

/// x = x * (1 - h²): turns the gradient of tanh's value into that of its argument.
void multiply_by_tanh_slope(float* x, const float* h, std::size_t columns, std::size_t n) {
  for (std::size_t j = 0; j < columns; ++j, x += block_samples, h += block_samples)
    for (std::size_t i = 0; i < n; ++i)
      x[i] *= 1.0F - h[i] * h[i];
}

void add_bias(float* x, const float* bias, std::size_t columns, std::size_t n) {
  for (std::size_t j = 0; j < columns; ++j, x += block_samples)
    for (std::size_t i = 0; i < n; ++i)
      x[i] += bias[j];
}

void add_column_sums(float* sums, const float* x, std::size_t columns, std::size_t n) {
  for (std::size_t j = 0; j < columns; ++j)
    sums[j] += sum_of(x + j * block_samples, n);
}

/// Per sample of a block: the greatest logit, and the sum of e^(logit - greatest).
struct softmax_sums {
  alignas(alignment_bytes) std::array<float, block_samples> greatest;
  alignas(alignment_bytes) std::array<float, block_samples> sum;
};

/// Replaces the logits by e^(logit - greatest).
void exponentiate(float* logits, softmax_sums& sums, std::size_t n) {
  std::copy_n(logits, n, sums.greatest.data());
  for (std::size_t j = 1; j < byte_values; ++j)
    for (std::size_t i = 0; i < n; ++i)
      sums.greatest[i] = std::max(sums.greatest[i], logits[j * block_samples + i]);
  std::fill_n(sums.sum.data(), n, 0.0F);
  for (std::size_t j = 0; j < byte_values; ++j) {
    auto* column = logits + j * block_samples;
    for (std::size_t i = 0; i < n; ++i) {
      column[i] = exp_of_nonpositive(column[i] - sums.greatest[i]);
      sums.sum[i] += column[i];
    }
  }
}

/// Divides the exponentials by their sums: the logits' columns become probabilities.
void normalise(float* exponentials, const softmax_sums& sums, std::size_t n) {
  alignas(alignment_bytes) std::array<float, block_samples> scale;
  for (std::size_t i = 0; i < n; ++i)
    scale[i] = 1.0F / sums.sum[i];
  for (std::size_t j = 0; j < byte_values; ++j)
    for (std::size_t i = 0; i < n; ++i)
      exponentials[j * block_samples + i] *= scale[i];
}

} // namespace

/// Intermediate results of a block of samples between forward and backward pass. Matrices whose rows are samples always
/// have `block_samples` rows in memory, so that their columns stay aligned.
struct model::workspace {
  explicit workspace(const model_shape& shape)
      : inputs(shape.inputs() * block_samples),
        hidden(shape.hidden * block_samples),
        logits(byte_values * block_samples),
        hidden_gradient(shape.hidden * block_samples),
        inputs_gradient(shape.inputs() * block_samples) {}

  aligned_buffer inputs;          // inputs x samples
  aligned_buffer hidden;          // samples x hidden
  aligned_buffer logits;          // samples x 256; then exponentials, then the logits' gradient
  aligned_buffer hidden_gradient; // samples x hidden
  aligned_buffer inputs_gradient; // inputs x samples
  softmax_sums sums;
};

namespace {

/// Stacks the embeddings of each sample's context; padding rows are zero.
void gather(const sample_block& samples, const model_shape& shape, const float* embedding, float* inputs) {
  for (auto position : samples.positions)
    for (std::size_t i = 0; i < shape.context; ++i, inputs += shape.embedding)
      std::copy_n(embedding + samples.corpus[position + i] * shape.embedding, shape.embedding, inputs);
  std::fill_n(inputs, (samples.rows() - samples.positions.size()) * shape.inputs(), 0.0F);
}

/// Adds each sample's part of `inputs` to the embedding rows of its bytes, sample by sample.
void scatter(const sample_block& samples, const model_shape& shape, const float* inputs, float* embedding) {
  for (auto position : samples.positions)
    for (std::size_t i = 0; i < shape.context; ++i, inputs += shape.embedding) {
      auto* row = embedding + samples.corpus[position + i] * shape.embedding;
      for (std::size_t k = 0; k < shape.embedding; ++k)
        row[k] += inputs[k];
    }
}

/// Copies the logits of the target bytes before they are overwritten.
void target_logits(const sample_block& samples, std::size_t context, const float* logits, std::span<float> result) {
  for (std::size_t i = 0; i < samples.positions.size(); ++i)
    result[i] = logits[samples.corpus[samples.positions[i] + context] * block_samples + i];
}

double cross_entropy(const softmax_sums& sums, std::span<const float> targets) {
  double result = 0.0;
  for (std::size_t i = 0; i < targets.size(); ++i)
    result += log_of_positive(sums.sum[i]) + (double{sums.greatest[i]} - double{targets[i]});
  return result;
}

/// Turns probabilities into the gradient of the loss: subtracts one for the target byte; padding rows become zero.
void subtract_targets(const sample_block& samples, std::size_t context, float* probabilities) {
  const auto used = samples.positions.size();
  for (std::size_t i = 0; i < used; ++i)
    probabilities[samples.corpus[samples.positions[i] + context] * block_samples + i] -= 1.0F;
  for (std::size_t j = 0; j < byte_values; ++j)
    std::fill_n(probabilities + j * block_samples + used, samples.rows() - used, 0.0F);
}

} // namespace

troupe::expected<void> validate(const model_shape& shape) {
  constexpr std::size_t limit = std::size_t{1} << 28U;
  auto in_range = [](std::size_t n) { return n >= 1 && n <= limit / byte_values; };
  auto vectors = [](std::size_t n) { return n % aligned_floats == 0; };
  auto text = fmt::format("context {}, embedding {}, hidden {}", shape.context, shape.embedding, shape.hidden);
  if (!in_range(shape.context) || !in_range(shape.embedding) || !in_range(shape.hidden) ||
      shape.inputs() > limit / shape.hidden || shape.parameter_elements() > limit)
    return troupe::fail(
        troupe::errc::invalid_argument,
        fmt::format("model: {}: each must be at least 1, and there may be at most 2^28 parameters", text));
  if (!vectors(shape.embedding) || !vectors(shape.hidden))
    return troupe::fail(troupe::errc::invalid_argument,
                        fmt::format("model: {}: embedding and hidden must be multiples of 16", text));
  return {};
}

std::vector<tensor_place> places_of(const model_shape& shape, std::string_view prefix) {
  std::vector<tensor_place> result;
  std::size_t offset = 0;
  auto add = [&](const char* name, std::vector<std::uint64_t> dimensions) {
    std::size_t elements = 1;
    for (auto n : dimensions)
      elements *= n;
    result.push_back({std::string{prefix} + name, std::move(dimensions), offset, elements});
    offset += elements;
  };
  add("embedding", {byte_values, shape.embedding});
  add("hidden.weight", {shape.hidden, shape.inputs()});
  add("hidden.bias", {shape.hidden});
  add("output.weight", {byte_values, shape.hidden});
  add("output.bias", {byte_values});
  return result;
}

void fix_arithmetic() {
  static std::once_flag once;
  std::call_once(once, [] {
    Eigen::setCpuCacheSizes(32768, 262144, 4194304);
    Eigen::setNbThreads(1);
  });
}

model::model(const model_shape& shape) : shape_{shape} {
  troupe::value_or_throw(validate(shape));
  fix_arithmetic();
  parameters_.resize(shape.parameter_elements());
  workspace_ = std::make_unique<workspace>(shape);
}

model::~model() = default;
model::model(model&&) noexcept = default;
model& model::operator=(model&&) noexcept = default;

void model::initialise(const std::function<float(std::uint64_t)>& standard_normal) {
  std::fill(parameters_.begin(), parameters_.end(), 0.0F);
  const tensor_pointers<float> at{shape_, parameters_.data()};
  auto fill = [&](float* first, float* last, float scale) {
    for (auto* x = first; x != last; ++x)
      *x = scale * standard_normal(static_cast<std::uint64_t>(x - parameters_.data()));
  };
  fill(at.embedding, at.hidden_weight, 1.0F);
  fill(at.hidden_weight, at.hidden_bias, 1.0F / std::sqrt(static_cast<float>(shape_.inputs())));
  fill(at.output_weight, at.output_bias, 1.0F / std::sqrt(static_cast<float>(shape_.hidden)));
}

void model::check_positions(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) const {
  for (auto position : positions)
    if (position >= corpus.size() || corpus.size() - position <= shape_.context)
      throw troupe::exception{troupe::errc::invalid_argument,
                              fmt::format("model: position {} and its context of {} bytes exceed the corpus of {} "
                                          "bytes",
                                          position, shape_.context, corpus.size())};
}

void model::check_gradient(std::span<const float> gradient) const {
  if (gradient.size() != parameters_.size())
    throw troupe::exception{troupe::errc::invalid_argument,
                            fmt::format("model: the gradient has {} elements, but there are {} parameters",
                                        gradient.size(), parameters_.size())};
  if (reinterpret_cast<std::uintptr_t>(gradient.data()) % alignment_bytes != 0)
    throw troupe::exception{troupe::errc::invalid_argument, "model: the gradient does not start on a 64-byte boundary"};
}

/// Leaves the logits in the workspace.
void model::forward(const sample_block& samples) const {
  const tensor_pointers<const float> at{shape_, parameters_.data()};
  auto& work = *workspace_;
  const auto n = samples.rows();
  const auto inputs = matrix(work.inputs.data(), shape_.inputs(), n, shape_.inputs());
  auto hidden = matrix(work.hidden.data(), n, shape_.hidden, block_samples);
  auto logits = matrix(work.logits.data(), n, byte_values, block_samples);
  gather(samples, shape_, at.embedding, work.inputs.data());
  hidden.noalias() = inputs.transpose() * matrix(at.hidden_weight, shape_.inputs(), shape_.hidden, shape_.inputs());
  add_bias_and_tanh(work.hidden.data(), at.hidden_bias, shape_.hidden, n);
  logits.noalias() = hidden * matrix(at.output_weight, shape_.hidden, byte_values, shape_.hidden);
  add_bias(work.logits.data(), at.output_bias, byte_values, n);
}

/// Expects the logits' gradient in place of the logits.
void model::backward(const sample_block& samples, std::span<float> gradient) const {
  const tensor_pointers<const float> at{shape_, parameters_.data()};
  const tensor_pointers<float> sum{shape_, gradient.data()};
  auto& work = *workspace_;
  const auto n = samples.rows();
  const auto inputs = matrix(work.inputs.data(), shape_.inputs(), n, shape_.inputs());
  const auto hidden = matrix(work.hidden.data(), n, shape_.hidden, block_samples);
  const auto d_logits = matrix(work.logits.data(), n, byte_values, block_samples);
  auto d_hidden = matrix(work.hidden_gradient.data(), n, shape_.hidden, block_samples);
  auto d_inputs = matrix(work.inputs_gradient.data(), shape_.inputs(), n, shape_.inputs());

  matrix(sum.output_weight, shape_.hidden, byte_values, shape_.hidden).noalias() += hidden.transpose() * d_logits;
  add_column_sums(sum.output_bias, work.logits.data(), byte_values, n);
  d_hidden.noalias() = d_logits * matrix(at.output_weight, shape_.hidden, byte_values, shape_.hidden).transpose();
  multiply_by_tanh_slope(work.hidden_gradient.data(), work.hidden.data(), shape_.hidden, n);
  matrix(sum.hidden_weight, shape_.inputs(), shape_.hidden, shape_.inputs()).noalias() += inputs * d_hidden;
  add_column_sums(sum.hidden_bias, work.hidden_gradient.data(), shape_.hidden, n);
  d_inputs.noalias() = matrix(at.hidden_weight, shape_.inputs(), shape_.hidden, shape_.inputs()) * d_hidden.transpose();
  scatter(samples, shape_, work.inputs_gradient.data(), sum.embedding);
}

namespace {

/// Calls `f` with each block of positions in turn.
template <class F>
void for_each_block(std::span<const std::uint64_t> positions, F f) {
  for (; !positions.empty(); positions = positions.subspan(std::min(positions.size(), block_samples)))
    f(positions.first(std::min(positions.size(), block_samples)));
}

/// Turns logits into exponentials and returns the summed loss of the block.
double loss_of(const sample_block& samples, std::size_t context, float* logits, softmax_sums& sums) {
  std::array<float, block_samples> buffer;
  const auto targets = std::span{buffer}.first(samples.positions.size());
  target_logits(samples, context, logits, targets);
  exponentiate(logits, sums, samples.rows());
  return cross_entropy(sums, targets);
}

} // namespace

double model::forward_backward(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions,
                               std::span<float> gradient) {
  check_positions(corpus, positions);
  check_gradient(gradient);
  double result = 0.0;
  auto* logits = workspace_->logits.data();
  for_each_block(positions, [&](std::span<const std::uint64_t> part) {
    const sample_block samples{corpus, part};
    forward(samples);
    result += loss_of(samples, shape_.context, logits, workspace_->sums);
    normalise(logits, workspace_->sums, samples.rows());
    subtract_targets(samples, shape_.context, logits);
    backward(samples, gradient);
  });
  return result;
}

double model::loss(std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) const {
  check_positions(corpus, positions);
  double result = 0.0;
  for_each_block(positions, [&](std::span<const std::uint64_t> part) {
    const sample_block samples{corpus, part};
    forward(samples);
    result += loss_of(samples, shape_.context, workspace_->logits.data(), workspace_->sums);
  });
  return result;
}

void model::predict(std::span<const std::uint8_t> context, std::span<float, byte_values> logits) const {
  if (context.size() != shape_.context)
    throw troupe::exception{
        troupe::errc::invalid_argument,
        fmt::format("model: the context has {} bytes, but the model takes {}", context.size(), shape_.context)};
  const std::uint64_t start = 0;
  forward({context, {&start, 1}});
  for (std::size_t j = 0; j < byte_values; ++j)
    logits[j] = workspace_->logits[j * block_samples];
}

} // namespace charlm
