#include <troupe/data/dense_model.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

const auto kinds = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"a", "b", "c"});

data_set_ptr classes_of_points(std::vector<float> points, std::vector<std::int64_t> labels) {
  return value_or_throw(
      make_table({make_column("inputs", std::move(points), {2}), make_column("label", std::move(labels), {}, kinds)}));
}

data_set_ptr amounts(std::vector<float> points, std::vector<float> labels) {
  return value_or_throw(
      make_table({make_column("inputs", std::move(points), {2}), make_column("label", std::move(labels))}));
}

batch all_of(const data_set& set) {
  std::vector<std::uint64_t> samples;
  for (std::uint64_t i = 0; i < set.size(); ++i)
    samples.push_back(i);
  batch result;
  REQUIRE(set.fetch(samples, result));
  return result;
}

/// Compares the gradient with differences of the loss.
void check_gradient(const data_set& set, const dense_model_options& options) {
  auto model = dense_model{set, 1, options};
  const auto samples = all_of(set);
  // The last layer begins with zeros, which hides the others' gradients.
  auto n = 0;
  for (auto& x : model.parameters())
    x += 0.1f * static_cast<float>(++n % 7 - 3);
  std::vector<float> gradient(model.gradient_elements());
  std::ignore = model.add_gradient(samples, gradient);
  std::vector<float> unused(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    CAPTURE(i);
    auto& x = model.parameters()[i];
    const auto before = x;
    constexpr auto step = 1e-2f;
    x = before + step;
    const auto above = model.add_gradient(samples, unused);
    x = before - step;
    const auto below = model.add_gradient(samples, unused);
    x = before;
    const auto difference = (above - below) / (2 * static_cast<double>(step));
    CHECK(static_cast<double>(gradient[i]) == doctest::Approx(difference).epsilon(0.01).scale(1));
  }
}

const std::vector<float> points{0.5f, -1.0f, 1.5f, 0.25f, -0.75f, 2.0f, 1.0f, 1.0f};

template <class F>
errc code_of(F f) {
  try {
    f();
  } catch (const exception& x) {
    return x.reason().code;
  }
  return errc::none;
}

TEST_CASE("gradients are the derivatives of the loss") {
  check_gradient(*classes_of_points(points, {0, 1, 2, 1}), {});
  check_gradient(*classes_of_points(points, {0, 1, 2, 1}), {.hidden = {5, 4}});
  check_gradient(*amounts(points, {1, 2, 3, 4}), {});
  check_gradient(*amounts(points, {1, 2, 3, 4}), {.hidden = {6}});
}

TEST_CASE("a linear model finds a plane, and a network what no plane separates") {
  const auto train = [](const data_set& set, const dense_model_options& options, std::uint64_t steps) {
    auto model = std::make_unique<dense_model>(set, 1, options);
    const auto samples = all_of(set);
    std::vector<float> gradient(model->gradient_elements());
    for (std::uint64_t step = 1; step <= steps; ++step) {
      std::ranges::fill(gradient, 0.0f);
      std::ignore = model->add_gradient(samples, gradient);
      for (auto& x : gradient)
        x /= static_cast<float>(samples.size());
      model->apply(gradient, step);
    }
    return model;
  };
  // y = 2 a - b + 1.
  const auto plane = amounts(points, {3, 3.75f, -2.5f, 2});
  const auto linear = train(*plane, {.learning_rate = 0.05}, 2000);
  CHECK(linear->parameters()[0] == doctest::Approx(2).epsilon(0.01));
  CHECK(linear->parameters()[1] == doctest::Approx(-1).epsilon(0.01));
  CHECK(linear->parameters()[2] == doctest::Approx(1).epsilon(0.01));

  const auto corners = classes_of_points({0, 0, 0, 1, 1, 0, 1, 1}, {0, 1, 1, 0});
  const auto network = train(*corners, {.hidden = {16}, .learning_rate = 0.05}, 500);
  CHECK(network->outputs() == 3);
  std::vector<float> probabilities(12);
  network->predict(all_of(*corners), probabilities);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(probabilities[3 * i] + probabilities[3 * i + 1] + probabilities[3 * i + 2] == doctest::Approx(1));
    CHECK(probabilities[3 * i + (i == 1 || i == 2 ? 1 : 0)] > 0.9f);
  }
}

TEST_CASE("a seed decides the first parameters") {
  const auto set = classes_of_points(points, {0, 1, 2, 1});
  auto a = dense_model{*set, 1, {.hidden = {4}}};
  auto b = dense_model{*set, 1, {.hidden = {4}}};
  auto c = dense_model{*set, 2, {.hidden = {4}}};
  CHECK(std::ranges::equal(a.parameters(), b.parameters()));
  CHECK_FALSE(std::ranges::equal(a.parameters(), c.parameters()));
  CHECK(a.inputs() == 2);
  CHECK(a.gradient_elements() == 3 * 4 + 5 * 3);
}

TEST_CASE("losses of large values are finite") {
  const auto set = classes_of_points({1e4f, -1e4f}, {2});
  auto model = dense_model{*set, 1};
  std::ranges::fill(model.parameters(), 1e3f);
  model.parameters()[0] = 1e6f;
  std::vector<float> gradient(model.gradient_elements());
  CHECK(std::isfinite(model.add_gradient(all_of(*set), gradient)));
  CHECK(std::ranges::all_of(gradient, [](float x) { return std::isfinite(x); }));
}

TEST_CASE("columns and labels that the model cannot take are refused") {
  const auto set = classes_of_points(points, {0, 1, 2, 1});
  CHECK(code_of([&] { dense_model{*set, 1, {.inputs = "x"}}; }) == errc::not_found);
  CHECK(code_of([&] { dense_model{*set, 1, {.inputs = "label"}}; }) == errc::mismatch);
  CHECK(code_of([&] { dense_model{*set, 1, {.label = "inputs"}}; }) == errc::mismatch);
  CHECK(code_of([&] { dense_model{*set, 1, {.hidden = {0}}}; }) == errc::invalid_argument);
  const auto one = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"a"});
  const auto alike = value_or_throw(make_table({make_column("inputs", std::vector<float>{1, 2}),
                                                make_column("label", std::vector<std::int64_t>{0, 0}, {}, one)}));
  CHECK(code_of([&] { dense_model{*alike, 1}; }) == errc::mismatch);

  auto model = dense_model{*set, 1};
  std::vector<float> gradient(model.gradient_elements());
  CHECK(code_of([&] {
          std::ignore = model.add_gradient(all_of(*classes_of_points({1, 2}, {-1})), gradient);
        }) == errc::invalid_argument);
  gradient.pop_back();
  CHECK(code_of([&] { std::ignore = model.add_gradient(all_of(*set), gradient); }) == errc::invalid_argument);
  CHECK(code_of([&] { model.apply(gradient, 1); }) == errc::invalid_argument);
  CHECK(code_of([&] { model.predict(all_of(*set), gradient); }) == errc::invalid_argument);
}

} // namespace
