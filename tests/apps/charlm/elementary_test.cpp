#include <charlm/elementary.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

} // namespace

TEST_CASE("the exponential of a negative number is correct to the last bits") {
  for (double x = 0.0; x > -87.0; x -= 0.0137) {
    const auto argument = static_cast<float>(x);
    const auto exact = std::exp(static_cast<double>(argument));
    CHECK(std::fabs(charlm::exp_of_nonpositive(argument) - exact) <= 2.5e-7 * exact);
  }
  CHECK(charlm::exp_of_nonpositive(0.0F) == 1.0F);
}

TEST_CASE("the exponential of a very negative number is almost zero, and that of a NaN is a NaN") {
  CHECK(charlm::exp_of_nonpositive(-1e30F) > 0.0F);
  CHECK(charlm::exp_of_nonpositive(-1e30F) < 2e-38F);
  CHECK(charlm::exp_of_nonpositive(-std::numeric_limits<float>::infinity()) < 2e-38F);
  CHECK(std::isnan(charlm::exp_of_nonpositive(not_a_number)));
}

TEST_CASE("the hyperbolic tangent is correct, odd and bounded") {
  for (double x = -12.0; x <= 12.0; x += 0.0113) {
    const auto argument = static_cast<float>(x);
    CHECK(std::fabs(charlm::tanh_of(argument) - std::tanh(static_cast<double>(argument))) < 2e-7);
    CHECK(charlm::tanh_of(-argument) == -charlm::tanh_of(argument));
  }
  CHECK(charlm::tanh_of(1e30F) == 1.0F);
  CHECK(charlm::tanh_of(-1e30F) == -1.0F);
  CHECK(std::isnan(charlm::tanh_of(not_a_number)));
}

TEST_CASE("the logarithm is correct over many magnitudes") {
  for (double x = 1e-300; x < 1e300; x *= 1.37)
    CHECK(std::fabs(charlm::log_of_positive(x) - std::log(x)) <= 1e-15 * std::fmax(1.0, std::fabs(std::log(x))));
  for (double x = 0.5; x < 260.0; x += 0.0171)
    CHECK(std::fabs(charlm::log_of_positive(x) - std::log(x)) <= 1e-15 * std::fmax(1.0, std::fabs(std::log(x))));
  CHECK(charlm::log_of_positive(1.0) == 0.0);
  CHECK(std::isnan(charlm::log_of_positive(double{not_a_number})));
}
