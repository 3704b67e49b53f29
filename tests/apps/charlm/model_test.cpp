#include <charlm/model.hpp>
#include <charlm/optimizer.hpp>

#include "normals.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <numeric>
#include <set>

namespace {

using charlm::aligned_buffer;
using charlm::model;
using charlm::model_shape;

constexpr model_shape small{.context = 3, .embedding = 16, .hidden = 32};

model random_model(const model_shape& shape, std::uint64_t seed) {
  model result{shape};
  result.initialise([seed](std::uint64_t index) { return normal_at(seed, index); });
  return result;
}

/// Bytes of which some occur often and some once, including 0 and 255.
std::vector<std::uint8_t> some_bytes(std::size_t count) {
  std::vector<std::uint8_t> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = static_cast<std::uint8_t>(i % 7 == 0 ? 255 : i % 5 == 0 ? 0 : i * i % 11 + 90);
  return result;
}

std::vector<std::uint64_t> some_positions(std::size_t count, std::size_t bound) {
  std::vector<std::uint64_t> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = i * 37 % bound;
  return result;
}

/// The loss by definition, in double precision, one sample after another.
double reference_loss(const model_shape& shape, const std::vector<double>& parameters,
                      std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) {
  const auto* embedding = parameters.data();
  const auto* hidden_weight = embedding + 256 * shape.embedding;
  const auto* hidden_bias = hidden_weight + shape.hidden * shape.inputs();
  const auto* output_weight = hidden_bias + shape.hidden;
  const auto* output_bias = output_weight + 256 * shape.hidden;
  double result = 0.0;
  for (auto position : positions) {
    std::vector<double> hidden(hidden_bias, hidden_bias + shape.hidden);
    for (std::size_t j = 0; j < shape.hidden; ++j) {
      for (std::size_t i = 0; i < shape.inputs(); ++i)
        hidden[j] += hidden_weight[j * shape.inputs() + i] *
                     embedding[corpus[position + i / shape.embedding] * shape.embedding + i % shape.embedding];
      hidden[j] = std::tanh(hidden[j]);
    }
    std::vector<double> logits(output_bias, output_bias + 256);
    for (std::size_t b = 0; b < 256; ++b)
      for (std::size_t j = 0; j < shape.hidden; ++j)
        logits[b] += output_weight[b * shape.hidden + j] * hidden[j];
    double sum = 0.0;
    for (auto x : logits)
      sum += std::exp(x);
    result += std::log(sum) - logits[corpus[position + shape.context]];
  }
  return result;
}

double slope(const model_shape& shape, std::vector<double>& parameters, std::size_t index,
             std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) {
  const double h = 1e-5;
  const double x = parameters[index];
  parameters[index] = x + h;
  const auto above = reference_loss(shape, parameters, corpus, positions);
  parameters[index] = x - h;
  const auto below = reference_loss(shape, parameters, corpus, positions);
  parameters[index] = x;
  return (above - below) / (2.0 * h);
}

/// Indices spread over every tensor, and over the embeddings of the bytes that occur.
std::set<std::size_t> indices_to_check(const model_shape& shape, std::span<const std::uint8_t> corpus) {
  std::set<std::size_t> result;
  for (std::size_t i = 0; i < shape.parameter_elements(); i += 97)
    result.insert(i);
  for (std::size_t i = 0; i < corpus.size(); ++i)
    result.insert(corpus[i] * shape.embedding + i % shape.embedding);
  return result;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double norm(std::span<const float> x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

struct outcome {
  double loss;
  aligned_buffer gradient;
};

outcome run(model& m, std::span<const std::uint8_t> corpus, std::span<const std::uint64_t> positions) {
  outcome result{0.0, aligned_buffer(m.parameters().size())};
  result.loss = m.forward_backward(corpus, positions, result.gradient);
  return result;
}

} // namespace

TEST_CASE("the loss equals its definition for any number of positions") {
  auto m = random_model(small, 1);
  const std::vector<double> parameters(m.parameters().begin(), m.parameters().end());
  const auto corpus = some_bytes(200);
  for (std::size_t count : {0, 1, 15, 16, 17, 63, 64, 65, 130}) {
    CAPTURE(count);
    const auto positions = some_positions(count, corpus.size() - small.context);
    const auto expected = reference_loss(small, parameters, corpus, positions);
    CHECK(m.loss(corpus, positions) == doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("the gradient agrees with finite differences of the definition") {
  auto m = random_model(small, 2);
  std::vector<double> parameters(m.parameters().begin(), m.parameters().end());
  const auto corpus = some_bytes(120);
  const auto positions = some_positions(70, corpus.size() - small.context); // a full block and a partial one
  const auto gradient = run(m, corpus, positions).gradient;
  for (auto index : indices_to_check(small, corpus)) {
    CAPTURE(index);
    CHECK(std::fabs(gradient[index] - slope(small, parameters, index, corpus, positions)) < 2e-4);
  }
}

TEST_CASE("the gradient of a byte that does not occur is exactly zero") {
  auto m = random_model(small, 2);
  const auto corpus = some_bytes(120);
  const auto result = run(m, corpus, some_positions(70, corpus.size() - small.context));
  const auto row = std::span{result.gradient}.subspan(200 * small.embedding, small.embedding);
  CHECK(std::find(corpus.begin(), corpus.end(), 200) == corpus.end());
  CHECK(std::all_of(row.begin(), row.end(), [](float x) { return x == 0.0F; }));
  CHECK(norm(result.gradient) > 1.0);
}

TEST_CASE("a gradient is added to the buffer, and the sum of two calls is the sum of both") {
  auto m = random_model(small, 3);
  const auto corpus = some_bytes(300);
  const auto positions = some_positions(100, corpus.size() - small.context);
  const auto all = run(m, corpus, positions);
  aligned_buffer twice(m.parameters().size());
  const auto first = m.forward_backward(corpus, std::span{positions}.first(37), twice);
  const auto second = m.forward_backward(corpus, std::span{positions}.subspan(37), twice);
  CHECK(first + second == doctest::Approx(all.loss).epsilon(1e-6));
  for (std::size_t i = 0; i < twice.size(); ++i)
    REQUIRE(std::fabs(twice[i] - all.gradient[i]) < 1e-3);
}

TEST_CASE("the same call gives the same bits, independent of the addresses of its buffers") {
  const model_shape shape{};
  const auto corpus = some_bytes(2000);
  const auto positions = some_positions(150, corpus.size() - shape.context);
  auto m = random_model(shape, 4);
  const auto expected = run(m, corpus, positions);
  CHECK(same_bits(run(m, corpus, positions).gradient, expected.gradient));

  std::vector<model> kept; // shift later allocations to other addresses
  std::set<const float*> addresses;
  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<std::uint8_t> moved_corpus(corpus.size() + i + 1);
    std::copy(corpus.begin(), corpus.end(), moved_corpus.begin() + static_cast<std::ptrdiff_t>(i + 1));
    kept.push_back(random_model(shape, 4));
    // A gradient that starts on each 64-byte boundary of a page in turn, surrounded by other values.
    aligned_buffer around(m.parameters().size() + 256, 7.0F);
    const auto gradient = std::span{around}.subspan(16 * (i + 1), m.parameters().size());
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    const auto loss = kept.back().forward_backward(std::span{moved_corpus}.subspan(i + 1), positions, gradient);
    addresses.insert(kept.back().parameters().data());
    CHECK(loss == expected.loss);
    CHECK(same_bits(gradient, expected.gradient));
    CHECK(around[16 * (i + 1) - 1] == 7.0F);
    CHECK(around[16 * (i + 1) + gradient.size()] == 7.0F);
  }
  CHECK(addresses.size() == 5);
}

TEST_CASE("earlier computations do not affect a model") {
  auto used = random_model(small, 5);
  auto fresh = random_model(small, 5);
  const auto corpus = some_bytes(400);
  (void)run(used, corpus, some_positions(129, corpus.size() - small.context));
  const auto positions = some_positions(21, corpus.size() - small.context);
  CHECK(same_bits(run(used, corpus, positions).gradient, run(fresh, corpus, positions).gradient));
}

TEST_CASE("the loss without a gradient has the bits of the loss with one") {
  auto m = random_model(small, 6);
  const auto corpus = some_bytes(400);
  const auto positions = some_positions(90, corpus.size() - small.context);
  CHECK(m.loss(corpus, positions) == run(m, corpus, positions).loss);
}

TEST_CASE("the prediction of a byte agrees with the loss") {
  auto m = random_model(small, 7);
  const auto corpus = some_bytes(100);
  const std::vector<std::uint64_t> position{11};
  std::array<float, 256> logits{};
  m.predict(std::span{corpus}.subspan(11, small.context), logits);
  double sum = 0.0;
  for (auto x : logits)
    sum += std::exp(double{x});
  CHECK(std::log(sum) - logits[corpus[11 + small.context]] == doctest::Approx(m.loss(corpus, position)).epsilon(1e-6));
}

TEST_CASE("an untrained model predicts all bytes equally") {
  const model m{small};
  const auto corpus = some_bytes(100);
  CHECK(m.loss(corpus, some_positions(50, 90)) == doctest::Approx(50 * std::log(256.0)));
}

TEST_CASE("training memorises a small text") {
  const std::string line = "the quick brown fox jumps over the lazy dog; ";
  std::vector<std::uint8_t> corpus;
  for (int i = 0; i < 4; ++i)
    corpus.insert(corpus.end(), line.begin(), line.end());
  auto m = random_model({.context = 4, .embedding = 16, .hidden = 32}, 8);
  const auto positions = some_positions(100, corpus.size() - 4);
  aligned_buffer gradient(m.parameters().size());
  aligned_buffer first(gradient.size());
  aligned_buffer second(gradient.size());
  const auto before = m.loss(corpus, positions) / 100.0;
  for (std::uint64_t step = 1; step <= 150; ++step) {
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    m.forward_backward(corpus, positions, gradient);
    for (auto& x : gradient)
      x /= 100.0F;
    charlm::adam_update(m.parameters(), first, second, gradient, {step}, {.learning_rate = 0.01, .warm_up_steps = 10});
  }
  CHECK(before > 4.0);
  CHECK(m.loss(corpus, positions) / 100.0 < 0.1);
}

TEST_CASE("the tensors fill the flat buffer without gaps, each on a boundary") {
  model m{{}};
  std::size_t elements = 0;
  for (const auto& tensor : m.tensors("weights.")) {
    CAPTURE(tensor.name);
    CHECK(tensor.name.starts_with("weights."));
    CHECK(tensor.values.data() == m.parameters().data() + elements);
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.values.data()) % charlm::alignment_bytes == 0);
    CHECK(tensor.values.size() ==
          std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::size_t{1}, std::multiplies{}));
    elements += tensor.values.size();
  }
  CHECK(elements == m.parameters().size());
}

TEST_CASE("initial parameters are scaled normal numbers of their index, and biases are zero") {
  model m{small};
  std::set<std::uint64_t> asked;
  m.initialise([&](std::uint64_t index) {
    CHECK(asked.insert(index).second);
    return static_cast<float>(index);
  });
  const auto tensors = m.tensors();
  CHECK(tensors[0].values[5] == 5.0F);
  CHECK(tensors[1].values[0] == doctest::Approx(256 * 16 / std::sqrt(48.0)));
  CHECK(norm(tensors[2].values) == 0.0);
  CHECK(norm(tensors[4].values) == 0.0);
  CHECK(asked.size() == m.parameters().size() - small.hidden - 256);
}

TEST_CASE("the parameters of a moved model keep their addresses") {
  auto m = random_model(small, 9);
  const auto* where = m.parameters().data();
  const auto corpus = some_bytes(100);
  const auto positions = some_positions(10, 90);
  const auto loss = m.loss(corpus, positions);
  const auto moved = std::move(m);
  CHECK(moved.parameters().data() == where);
  CHECK(moved.loss(corpus, positions) == loss);
}

TEST_CASE("shapes that would break alignment or memory limits are rejected with the reason") {
  CHECK(charlm::validate({}).has_value());
  const auto odd = charlm::validate({.context = 16, .embedding = 10, .hidden = 192});
  REQUIRE_FALSE(odd.has_value());
  CHECK(odd.error().code == troupe::errc::invalid_argument);
  CHECK(odd.error().message.find("embedding 10") != std::string::npos);
  CHECK_FALSE(charlm::validate({.context = 0, .embedding = 16, .hidden = 16}).has_value());
  CHECK_FALSE(charlm::validate({.context = 16, .embedding = 16, .hidden = 0}).has_value());
  CHECK_FALSE(charlm::validate({.context = std::size_t{1} << 63U, .embedding = 16, .hidden = 16}).has_value());
  CHECK_FALSE(charlm::validate({.context = 1 << 16, .embedding = 1 << 16, .hidden = 1 << 16}).has_value());
  CHECK_THROWS_AS(model{model_shape{.hidden = 17}}, troupe::exception);
}

TEST_CASE("positions outside the corpus and gradients of other sizes are rejected") {
  auto m = random_model(small, 10);
  const auto corpus = some_bytes(20);
  aligned_buffer gradient(m.parameters().size() + 16);
  const auto right = std::span{gradient}.first(m.parameters().size());
  const std::vector<std::uint64_t> last{16};
  const std::vector<std::uint64_t> beyond{17};
  const std::vector<std::uint64_t> far{~std::uint64_t{0}};
  CHECK_NOTHROW(m.forward_backward(corpus, last, right));
  CHECK_THROWS_AS(m.forward_backward(corpus, beyond, right), troupe::exception);
  CHECK_THROWS_AS(m.forward_backward(corpus, far, right), troupe::exception);
  CHECK_THROWS_AS(m.forward_backward(corpus, last, gradient), troupe::exception);
  CHECK_THROWS_AS(m.forward_backward(corpus, last, std::span{gradient}.subspan(1, right.size())), troupe::exception);
  CHECK_THROWS_AS((void)m.loss(corpus, beyond), troupe::exception);
}
