#include <charlm/optimizer.hpp>

#include <troupe/error.hpp>

#include <algorithm>
#include <cmath>

namespace charlm {

namespace {

/// base^exponent by squaring, because the result of the C library's `pow` depends on the processor.
double power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1)
      result *= base;
  return result;
}

void check(std::size_t parameters, std::size_t m, std::size_t v, std::size_t gradient, troupe::step_id step) {
  if (m != parameters || v != parameters || gradient != parameters)
    throw troupe::exception{troupe::errc::invalid_argument, "adam: parameters, moments and gradient differ in length"};
  if (step.value == 0)
    throw troupe::exception{troupe::errc::invalid_argument, "adam: step 0 is the state before the first update"};
}

} // namespace

double learning_rate(troupe::step_id step, const adam_options& options) noexcept {
  const auto k = static_cast<double>(step.value);
  if (step.value < options.warm_up_steps)
    return options.learning_rate * k / static_cast<double>(options.warm_up_steps);
  const auto decay_from = static_cast<double>(std::max<std::uint64_t>(options.constant_steps, 1));
  return k <= decay_from ? options.learning_rate : options.learning_rate * std::sqrt(decay_from / k);
}

adam_factors factors_of(troupe::step_id step, const adam_options& options) noexcept {
  adam_factors result;
  result.beta1 = static_cast<float>(options.beta1);
  result.beta2 = static_cast<float>(options.beta2);
  result.rest1 = static_cast<float>(1.0 - options.beta1);
  result.rest2 = static_cast<float>(1.0 - options.beta2);
  result.rate = static_cast<float>(learning_rate(step, options) / (1.0 - power(options.beta1, step.value)));
  result.scale2 = static_cast<float>(1.0 / (1.0 - power(options.beta2, step.value)));
  result.epsilon = static_cast<float>(options.epsilon);
  return result;
}

void adam_update(std::span<float> parameters, std::span<float> m, std::span<float> v,
                 std::span<const float> mean_gradient, troupe::step_id step, const adam_options& options) {
  check(parameters.size(), m.size(), v.size(), mean_gradient.size(), step);
  const auto factors = factors_of(step, options);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    adam_element(factors, parameters[i], m[i], v[i], mean_gradient[i]);
}

} // namespace charlm
