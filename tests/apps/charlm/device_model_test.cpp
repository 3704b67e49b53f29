#include <charlm/device_model.hpp>
#include <charlm/optimizer.hpp>

#include "normals.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <numeric>
#include <utility>
#include <vector>

namespace {

using charlm::aligned_buffer;
using charlm::byte_values;
using charlm::device_model;
using charlm::matrix_product;
using charlm::model;
using charlm::model_shape;
using charlm::sample_rows;

/// The kernels' element functions in host loops, and matrix products by definition. Launches, streams and cuBLAS are
/// covered by the tests labelled `gpu`.
class host_maths : public charlm::device_maths {
 public:
  void multiply(const matrix_product& x) override {
    auto element = [](const float* data, matrix_product::operand op, std::size_t stride, std::size_t row,
                      std::size_t column) {
      return op == matrix_product::operand::as_is ? data[column * stride + row] : data[row * stride + column];
    };
    for (std::size_t column = 0; column < x.n; ++column)
      for (std::size_t row = 0; row < x.m; ++row) {
        auto sum = 0.0F;
        for (std::size_t i = 0; i < x.k; ++i)
          sum += element(x.a, x.op_a, x.lda, row, i) * element(x.b, x.op_b, x.ldb, i, column);
        auto& target = x.c[column * x.ldc + row];
        target = x.into == matrix_product::target::added_to ? target + sum : sum;
      }
  }
  void gather(const sample_rows& rows, const float* embedding, float* inputs) override {
    for (std::uint64_t i = 0; i < rows.samples * rows.inputs(); ++i)
      charlm::gather_element(rows, embedding, inputs, i);
  }
  void add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden) override {
    for (std::uint64_t i = 0; i < rows.samples * rows.hidden; ++i)
      charlm::tanh_element(rows, bias, hidden, i);
  }
  void softmax(const sample_rows& rows, const float* bias, float* logits, double* losses, bool with_gradient) override {
    for (std::uint64_t sample = 0; sample < rows.samples; ++sample) {
      auto* row = logits + sample * byte_values;
      std::vector<float> biased(byte_values);
      for (std::size_t i = 0; i < byte_values; ++i)
        biased[i] = row[i] + bias[i];
      auto greatest = in_halves(biased, [](float x, float y) { return charlm::larger(x, y); });
      std::vector<float> powers(byte_values);
      for (std::size_t i = 0; i < byte_values; ++i)
        powers[i] = charlm::exp_of_nonpositive(biased[i] - greatest);
      auto sum = in_halves(powers, [](float x, float y) { return x + y; });
      losses[sample] = charlm::cross_entropy_of(sum, greatest, biased[rows.target(sample)]);
      if (with_gradient)
        for (std::size_t i = 0; i < byte_values; ++i)
          row[i] = charlm::logit_gradient(powers[i], sum, i == rows.target(sample));
    }
  }
  void add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum) override {
    sum_columns(losses, samples, 1, chunks, sum);
  }
  void multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient) override {
    for (std::uint64_t i = 0; i < rows.samples * rows.hidden; ++i)
      charlm::tanh_slope_element(hidden, gradient, i);
  }
  void add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks,
                       float* sums) override {
    sum_columns(x, samples, columns, chunks, sums);
  }
  void scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks,
               float* embedding_gradient) override {
    const auto elements = byte_values * rows.embedding;
    for (std::uint64_t i = 0; i < charlm::chunks_of(rows.samples) * elements; ++i)
      charlm::scatter_chunk_element(rows, inputs_gradient, chunks, i);
    for (std::uint64_t i = 0; i < elements; ++i)
      charlm::chunk_sum_element(chunks, charlm::chunks_of(rows.samples), elements, embedding_gradient, i);
  }
  void adam(const charlm::adam_factors& by, float* parameters, float* m, float* v, const float* gradient,
            std::uint64_t elements) override {
    for (std::uint64_t i = 0; i < elements; ++i)
      charlm::adam_element(by, parameters[i], m[i], v[i], gradient[i]);
  }

 private:
  template <class T>
  static void sum_columns(const T* x, std::uint64_t samples, std::uint64_t columns, T* chunks, T* sums) {
    for (std::uint64_t i = 0; i < charlm::chunks_of(samples) * columns; ++i)
      charlm::column_chunk_element(x, samples, columns, chunks, i);
    for (std::uint64_t i = 0; i < columns; ++i)
      charlm::chunk_sum_element(chunks, charlm::chunks_of(samples), columns, sums, i);
  }

  template <class F>
  static float in_halves(std::vector<float> lanes, F f) {
    for (auto half = lanes.size() / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane)
        lanes[lane] = f(lanes[lane], lanes[lane + half]);
    return lanes[0];
  }
};

std::vector<std::uint8_t> some_text(std::size_t count) {
  std::vector<std::uint8_t> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = static_cast<std::uint8_t>(i % 7 == 0 ? 255 : i % 5 == 0 ? 0 : i * i % 11 + 90);
  return result;
}

std::vector<std::uint64_t> some_places(std::size_t count, std::size_t bound) {
  std::vector<std::uint64_t> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = i * 37 % bound;
  return result;
}

/// Both models with the same parameters, and a text.
struct twins {
  model_shape shape{.context = 3, .embedding = 16, .hidden = 32};
  model host{shape};
  host_maths maths;
  std::vector<std::uint8_t> text = some_text(500);
  std::vector<std::byte> workspace;
  device_model device;

  explicit twins(std::size_t samples)
      : workspace(device_model::workspace_bytes(shape, samples)), device(shape, maths, workspace.data(), samples) {
    host.initialise([](std::uint64_t i) { return normal_at(11, i); });
    device.set_corpus(text.data());
  }
};

} // namespace

TEST_CASE("the device's network has the same loss and gradient as the host's") {
  for (std::size_t samples : {1u, 5u, 64u, 100u, 200u}) {
    CAPTURE(samples);
    twins both{samples};
    auto positions = some_places(samples, both.text.size() - 3);
    aligned_buffer wanted(both.shape.parameter_elements());
    auto loss = both.host.forward_backward(both.text, positions, wanted);
    aligned_buffer gradient(wanted.size());
    auto found = 0.0;
    std::vector<std::pair<std::size_t, std::size_t>> completed;
    both.device.forward_backward(both.host.parameters().data(), positions.data(), samples, gradient.data(), &found,
                                 [&](std::size_t first, std::size_t count) { completed.emplace_back(first, count); });
    CHECK(found == doctest::Approx(loss).epsilon(1e-5));
    auto largest = 0.0F;
    for (auto x : wanted)
      largest = std::max(largest, std::fabs(x));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      REQUIRE(std::fabs(gradient[i] - wanted[i]) <= 2e-5F * largest);
    }
    // From the end to the begin, with every element exactly once.
    auto end = wanted.size();
    for (auto [first, count] : completed) {
      CHECK(first + count == end);
      end = first;
    }
    CHECK(end == 0);
    CHECK(completed.size() == 3);
    auto again = 0.0;
    both.device.loss(both.host.parameters().data(), positions.data(), samples, &again);
    CHECK(again == found);
  }
}

TEST_CASE("completed parts of a gradient are not touched again, and gradients are added") {
  const auto samples = device_model::block_samples + 3;
  twins both{samples};
  auto positions = some_places(samples, both.text.size() - 3);
  aligned_buffer gradient(both.shape.parameter_elements(), 1.0F);
  aligned_buffer snapshot(gradient.size());
  auto loss = 0.0;
  both.device.forward_backward(both.host.parameters().data(), positions.data(), samples, gradient.data(), &loss,
                               [&](std::size_t first, std::size_t count) {
                                 std::copy_n(gradient.data() + first, count, snapshot.data() + first);
                               });
  CHECK(std::memcmp(gradient.data(), snapshot.data(), gradient.size() * sizeof(float)) == 0);
  aligned_buffer wanted(gradient.size());
  CHECK(loss == doctest::Approx(both.host.forward_backward(both.text, positions, wanted)).epsilon(1e-5));
  // The last element is in the output's bias, whose gradient is added up over all samples.
  CHECK(gradient.back() - 1.0F == doctest::Approx(wanted.back()).epsilon(1e-3));
}

TEST_CASE("a shard without samples contributes nothing and is complete") {
  twins both{4};
  aligned_buffer gradient(both.shape.parameter_elements());
  auto loss = 0.0;
  auto completed = std::size_t{0};
  both.device.forward_backward(both.host.parameters().data(), nullptr, 0, gradient.data(), &loss,
                               [&](std::size_t, std::size_t count) { completed += count; });
  CHECK(loss == 0.0);
  CHECK(completed == gradient.size());
  CHECK(std::ranges::all_of(gradient, [](float x) { return x == 0.0F; }));
}

TEST_CASE("the device's update of Adam has the same bits as the host's") {
  constexpr std::size_t n = 1000;
  std::vector<float> gradient(n);
  for (std::size_t i = 0; i < n; ++i)
    gradient[i] = normal_at(3, i);
  std::vector<float> parameters(n, 0.5F), m(n, 0.1F), v(n, 0.2F);
  auto parameters2 = parameters, m2 = m, v2 = v;
  host_maths maths;
  for (std::uint64_t step : {1u, 7u, 500u}) {
    charlm::adam_update(parameters, m, v, gradient, troupe::step_id{step});
    maths.adam(charlm::factors_of(troupe::step_id{step}), parameters2.data(), m2.data(), v2.data(), gradient.data(), n);
  }
  CHECK(parameters == parameters2);
  CHECK(m == m2);
  CHECK(v == v2);
}
