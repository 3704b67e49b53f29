#include <troupe/training/gradient.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace troupe::training;

TEST_CASE("the norm is that of all elements, whatever their number") {
  for (std::size_t count : {0u, 1u, 15u, 16u, 17u, 1000u}) {
    CAPTURE(count);
    std::vector<float> gradient(count, 2);
    CHECK(global_norm(gradient) == doctest::Approx(2 * std::sqrt(static_cast<double>(count))));
  }
  // Single precision has no square of it.
  CHECK(global_norm(std::vector<float>(4, 1e30f)) == doctest::Approx(2e30));
}

TEST_CASE("a gradient is finite if each element is") {
  std::vector<float> gradient(100, -std::numeric_limits<float>::max());
  CHECK(is_finite(gradient));
  CHECK(is_finite({}));
  for (auto bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                   std::numeric_limits<float>::quiet_NaN()})
    for (std::size_t place : {0u, 63u, 99u}) {
      auto damaged = gradient;
      damaged[place] = bad;
      CHECK_FALSE(is_finite(damaged));
    }
}

TEST_CASE("a long gradient is clipped to the highest norm, and a short one stays") {
  CHECK(clip_factor(0, 1) == 1);
  CHECK(clip_factor(0.5, 1) == 1);
  CHECK(clip_factor(4, 1) == doctest::Approx(0.25));
}
