#include <charlm/optimizer.hpp>

#include <troupe/error.hpp>

#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <vector>

using charlm::adam_options;
using troupe::step_id;

TEST_CASE("the first update of Adam is the learning rate times the negative sign of the gradient") {
  const adam_options options{.learning_rate = 0.5, .warm_up_steps = 10};
  std::array<float, 3> parameters{1.0F, 1.0F, 1.0F};
  std::array<float, 3> m{};
  std::array<float, 3> v{};
  charlm::adam_update(parameters, m, v, std::array{3.0F, -0.01F, 0.0F}, step_id{1}, options);
  CHECK(parameters[0] == doctest::Approx(0.95));
  CHECK(parameters[1] == doctest::Approx(1.05));
  CHECK(parameters[2] == 1.0F);
}

TEST_CASE("Adam follows the algorithm in double precision") {
  const adam_options options{};
  double x = 2.0;
  double m = 0.0;
  double v = 0.0;
  std::array<float, 1> parameter{2.0F};
  std::array<float, 1> first{};
  std::array<float, 1> second{};
  for (std::uint64_t k = 1; k <= 1000; ++k) {
    const double g = std::sin(static_cast<double>(k)) + 0.3;
    m = options.beta1 * m + (1 - options.beta1) * g;
    v = options.beta2 * v + (1 - options.beta2) * g * g;
    const auto n = static_cast<double>(k);
    const double m_hat = m / (1 - std::pow(options.beta1, n));
    const double v_hat = v / (1 - std::pow(options.beta2, n));
    x -= charlm::learning_rate(step_id{k}, options) * m_hat / (std::sqrt(v_hat) + options.epsilon);
    charlm::adam_update(parameter, first, second, std::array{static_cast<float>(g)}, step_id{k});
  }
  CHECK(parameter[0] == doctest::Approx(x).epsilon(1e-4));
}

TEST_CASE("updating a part of the buffers gives the same bits") {
  std::vector<float> gradient(1003);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = std::sin(static_cast<float>(i));
  std::vector<float> whole(1003, 1.0F), m(1003), v(1003), parts(1003, 1.0F), m_parts(1003), v_parts(1003);
  for (std::uint64_t k = 1; k <= 3; ++k) {
    charlm::adam_update(whole, m, v, gradient, step_id{k});
    for (const auto& [first, count] : {std::pair{0U, 13U}, std::pair{13U, 990U}}) {
      auto of = [first = first, count = count](std::vector<float>& x) { return std::span{x}.subspan(first, count); };
      charlm::adam_update(of(parts), of(m_parts), of(v_parts), of(gradient), step_id{k});
    }
  }
  CHECK(whole == parts);
  CHECK(m == m_parts);
  CHECK(v == v_parts);
}

TEST_CASE("the learning rate increases, stays constant and decreases with the step number alone") {
  const adam_options options{.learning_rate = 1.0, .warm_up_steps = 100, .constant_steps = 400};
  CHECK(charlm::learning_rate(step_id{1}, options) == doctest::Approx(0.01));
  CHECK(charlm::learning_rate(step_id{50}, options) == doctest::Approx(0.5));
  CHECK(charlm::learning_rate(step_id{100}, options) == 1.0);
  CHECK(charlm::learning_rate(step_id{400}, options) == 1.0);
  CHECK(charlm::learning_rate(step_id{1600}, options) == doctest::Approx(0.5));
}

TEST_CASE("a schedule without warm-up or constant part does not divide by zero") {
  const adam_options options{.learning_rate = 1.0, .warm_up_steps = 0, .constant_steps = 0};
  CHECK(charlm::learning_rate(step_id{1}, options) == 1.0);
  CHECK(charlm::learning_rate(step_id{4}, options) == doctest::Approx(0.5));
}

TEST_CASE("buffers of unequal lengths and step 0 are rejected") {
  std::vector<float> three(3);
  std::vector<float> two(2);
  CHECK_THROWS_AS(charlm::adam_update(three, three, two, three, step_id{1}), troupe::exception);
  CHECK_THROWS_AS(charlm::adam_update(three, three, three, two, step_id{1}), troupe::exception);
  CHECK_THROWS_AS(charlm::adam_update(three, three, three, three, step_id{0}), troupe::exception);
}
