#include <troupe/error.hpp>
#include <troupe/training/schedule.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace troupe;
using namespace troupe::training;
using doctest::Approx;

namespace {

std::vector<double> first_steps(const schedule& factor, std::uint64_t steps) {
  std::vector<double> result;
  for (std::uint64_t step = 1; step <= steps; ++step)
    result.push_back(factor(step));
  return result;
}

void check(const schedule& factor, const std::vector<double>& expected) {
  auto found = first_steps(factor, expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-12));
  }
}

} // namespace

// The values of PyTorch's schedulers, as their documentation defines them, after 0, 1, ... calls of step().
TEST_CASE("a schedule has the factors of PyTorch's scheduler of that kind") {
  check(constant(), {1, 1, 1});
  check(step_decay(2, 0.5), {1, 1, 0.5, 0.5, 0.25});
  check(multi_step_decay({3, 1}, 0.1), {1, 0.1, 0.1, 0.01, 0.01});
  check(exponential_decay(0.9), {1, 0.9, 0.81});
  check(linear(4, 0.5, 1), {0.5, 0.625, 0.75, 0.875, 1, 1});
  // (1 + cos(pi t / 4)) / 2
  check(cosine(4), {1, 0.85355339059327376, 0.5, 0.14644660940672624, 0, 0, 0});
  check(cosine(2, 0.2), {1, 0.6, 0.2, 0.2});
  // OneCycleLR(max_lr=1, total_steps=10): rises in 2 steps from 0.04, falls in 7.
  check(one_cycle({.steps = 10}),
        {0.040000000000000036, 0.52000000000000002, 1, 0.95048463201347366, 0.81174565394976306, 0.61126202193628931,
         0.38874197806371075, 0.18825834605023697, 0.049519367986526286, 3.9999999999999998e-06});
}

TEST_CASE("one cycle rises and falls, and ends where it says") {
  auto factor = one_cycle({.steps = 100, .rise = 0.3, .first = 0.04, .last = 4e-6});
  CHECK(factor(1) == Approx(0.04));
  CHECK(factor(30) == 1);
  CHECK(factor(100) == Approx(4e-6));
  CHECK(factor(1000) == Approx(4e-6));
  for (std::uint64_t step = 2; step <= 100; ++step)
    CHECK((factor(step) > factor(step - 1)) == (step <= 30));
}

TEST_CASE("a warm-up rises to what follows it, which begins with its own first step") {
  auto factor = warm_up(100, cosine(1900, 0.1));
  CHECK(factor(1) == Approx(1.0 / 101));
  CHECK(factor(100) == Approx(100.0 / 101));
  CHECK(factor(101) == 1);
  CHECK(factor(101 + 950) == Approx(0.55));
  CHECK(factor(2001) == Approx(0.1));
  CHECK(factor(1'000'000) == Approx(0.1));
  CHECK(warm_up(0, constant())(1) == 1);
  CHECK(warm_up(3, step_decay(1, 0.5))(5) == 0.5);
}

TEST_CASE("a schedule of no steps, and a factor that is none, are refused") {
  CHECK_THROWS_AS((void)step_decay(0, 0.5), exception);
  CHECK_THROWS_AS((void)linear(0, 0, 1), exception);
  CHECK_THROWS_AS((void)cosine(0), exception);
  CHECK_THROWS_AS((void)one_cycle({.steps = 0}), exception);
  CHECK_THROWS_AS((void)one_cycle({.steps = 10, .rise = 1}), exception);
  CHECK_THROWS_AS((void)cosine(10, -0.1), exception);
  CHECK_THROWS_AS((void)exponential_decay(std::numeric_limits<double>::quiet_NaN()), exception);
}

TEST_CASE("a cycle of one step has one factor") {
  CHECK(one_cycle({.steps = 1})(1) == 1);
  CHECK(one_cycle({.steps = 2})(2) == Approx(1.0 / 25 / 1e4));
}
